/** The losses of `python/treadle_torch` and their gradients are those of `referenceLoss`; skipped where there is no PyTorch. */
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { z } from "zod";
import { lacksTorch, python } from "../../../test/support/torch.ts";
import { createRandom, referenceLoss } from "../src/index.ts";
import { configurations, randomStep } from "../src/testing/index.ts";
import { packedStep } from "./support/packed-step.ts";

const seed = Number(process.env.TREADLE_SEED);
const inPackage = (path: string) => fileURLToPath(new URL(`../../../python/treadle_torch/${path}`, import.meta.url));
const sums = z.record(z.string(), z.number());
const Answers = z.array(z.object({ sums, logprobs: z.array(z.number()), values: z.array(z.number()) }));

test("the PyTorch engine has the losses, metrics and gradients of referenceLoss for every configuration, ratios of e^±800 included", (context) => {
  const reason = lacksTorch();
  if (reason) context.skip(reason);
  const random = createRandom(seed);
  const batches = configurations.flatMap((config) =>
    Array.from({ length: 6 }, (_, each) => packedStep(config, randomStep(random, { extreme: each % 2 === 1 }))).flatMap(
      ({ loss, scored }) => scored.map((one) => ({ config, spec: loss, ...one })),
    ),
  );
  // JSON has no NaN; what does not count is read by nobody.
  const plain = (values: ArrayLike<number> | undefined) =>
    values && Array.from(values, (value) => (Number.isFinite(value) ? value : 0));
  const cases = batches.map(({ spec, batch, logprobs, values }) => ({
    spec,
    rows: batch.rows,
    columns: batch.columns,
    weights: plain(batch.weights),
    advantages: plain(batch.advantages),
    oldLogprobs: plain(batch.oldLogprobs),
    refLogprobs: plain(batch.refLogprobs),
    returns: plain(batch.returns),
    oldValues: plain(batch.oldValues),
    logprobs: plain(logprobs),
    values: plain(values),
  }));
  const ran = spawnSync(python, [inPackage("tests/losses.py")], {
    input: JSON.stringify(cases),
    encoding: "utf8",
    maxBuffer: 2 ** 28,
    env: { ...process.env, PYTHONPATH: inPackage("src") },
  });
  expect(ran.stderr).not.toContain("Error");
  const answers = Answers.parse(JSON.parse(ran.stdout));
  expect(answers).toHaveLength(cases.length);
  answers.forEach((answer, index) => {
    const { config, spec, batch, logprobs, values } = batches[index]!;
    const entropies = logprobs.map((own) => -Math.exp(own) * own);
    const own = referenceLoss(spec, batch, logprobs, entropies, values);
    // The entropy is a function of the one log-probability that there is.
    const slopes = own.gradient.map((slope, entry) => {
      const moved = own.entropyGradient[entry]! * -Math.exp(logprobs[entry]!) * (logprobs[entry]! + 1);
      return slope + (moved || 0);
    });
    const { loss, weight, kl, entropy, clipFraction, valueLoss } = own.metrics;
    const named = ["loss", "weight", "kl", "entropy", "clip_fraction", "value_loss"].map((name) => answer.sums[name]!);
    const pairs: [ArrayLike<number>, ArrayLike<number>][] = [
      [[loss, weight, kl, entropy, clipFraction, valueLoss], named],
      [slopes, answer.logprobs],
      [own.valueGradient, answer.values],
    ];
    for (const [ours, theirs] of pairs) {
      const magnitude = Array.from(theirs).reduce((most, value) => Math.max(most, Math.abs(value)), 1);
      for (let entry = 0; entry < theirs.length; entry++) {
        const error = Math.abs(ours[entry]! - theirs[entry]!) / magnitude;
        expect(error, `TREADLE_SEED=${seed}, ${JSON.stringify(config)}, entry ${entry}`).toBeLessThan(1e-6);
      }
    }
  });
}, 300_000);
