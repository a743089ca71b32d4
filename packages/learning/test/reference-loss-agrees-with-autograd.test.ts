/** The losses and gradients of `referenceLoss` are those that PyTorch finds with its autograd; skipped where there is no PyTorch. */
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { z } from "zod";
import { lacksTorch, python } from "../../../test/support/torch.ts";
import { createRandom, referenceLoss } from "../src/index.ts";
import { configurations, randomStep } from "../src/testing/index.ts";
import { packedStep } from "./support/packed-step.ts";

const seed = Number(process.env.TREADLE_SEED);
const script = fileURLToPath(new URL("support/autograd.py", import.meta.url));
const Answers = z.array(
  z.object({
    loss: z.number(),
    logprobs: z.array(z.number()),
    entropies: z.array(z.number()),
    values: z.array(z.number()),
  }),
);

test("referenceLoss has the losses and gradients of autograd for every configuration, ratios of e^±800 included", (context) => {
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
  const cases = batches.map(({ spec, batch, logprobs, entropies, values }) => ({
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
    entropies: plain(entropies),
    values: plain(values),
  }));
  const ran = spawnSync(python, [script], { input: JSON.stringify(cases), encoding: "utf8", maxBuffer: 2 ** 28 });
  expect(ran.stderr).not.toContain("Error");
  const answers = Answers.parse(JSON.parse(ran.stdout));
  expect(answers).toHaveLength(cases.length);
  let largest = 0;
  answers.forEach((answer, index) => {
    const { config, spec, batch, logprobs, entropies, values } = batches[index]!;
    const own = referenceLoss(spec, batch, logprobs, entropies, values);
    const pairs: [ArrayLike<number>, ArrayLike<number>][] = [
      [[own.metrics.loss], [answer.loss]],
      [own.gradient, answer.logprobs],
      [own.entropyGradient, answer.entropies],
      [own.valueGradient, answer.values],
    ];
    for (const [ours, theirs] of pairs) {
      const magnitude = Array.from(theirs).reduce((most, value) => Math.max(most, Math.abs(value)), 1);
      for (let entry = 0; entry < theirs.length; entry++) {
        const error = Math.abs(ours[entry]! - theirs[entry]!) / magnitude;
        expect(error, `TREADLE_SEED=${seed}, ${JSON.stringify(config)}, entry ${entry}`).toBeLessThan(1e-6);
        largest = Math.max(largest, error);
      }
    }
  });
  if (process.env.TREADLE_TABLE) console.log(`${cases.length} batches, largest error ${largest.toExponential(1)}`);
}, 120_000);
