/** The shipped path of every algorithm and an independent float64 reference are the same function, and have the same slopes. */
import type { Episode } from "@treadle/contracts";
import { expect, test } from "vitest";
import { createRandom, referenceStep } from "../src/index.ts";
import { configurations, randomStep, type Step, shippedStep } from "./support/random-step.ts";

const seed = Number(process.env.TREADLE_SEED ?? Date.now() % 1_000_000);
const stepsEach = 60;
const scoresOf = (step: Step) => (episode: Episode) => step.now.get(episode)!;

const cases = configurations.map((config) => [JSON.stringify(config), config] as const);

test.each(cases)("the loss of %s is the reference's", (_, config) => {
  const random = createRandom(`${seed}/${JSON.stringify(config)}`);
  let largest = 0;
  for (let each = 0; each < stepsEach; each++) {
    const step = randomStep(random, { extreme: each % 2 === 1 });
    const { loss } = shippedStep(config, step);
    const expected = referenceStep(config, step.groups, scoresOf(step));
    const error = Math.abs(loss - expected.loss) / Math.max(1, expected.magnitude);
    expect(error, `TREADLE_SEED=${seed}, step ${each}: ${loss} and ${expected.loss}`).toBeLessThan(1e-6);
    largest = Math.max(largest, error);
  }
  if (process.env.TREADLE_TABLE) console.log(`| \`${JSON.stringify(config)}\` | ${largest.toExponential(1)} |`);
});

test.each(cases)("the gradient of %s is what finite differences of the reference say", (_, config) => {
  const random = createRandom(`${seed}/slopes/${JSON.stringify(config)}`);
  let compared = 0;
  for (let each = 0; each < 12; each++) {
    const step = randomStep(random, { extreme: false });
    const { gradients } = shippedStep(config, step);
    for (const [episode, own] of gradients) {
      const tokens = [...episode.mask.keys()].filter((token) => episode.mask[token] === 1);
      const token = tokens[random.integer(tokens.length)]!;
      for (const name of ["logprobs", "values"] as const) {
        const lossAt = (change: number) =>
          referenceStep(
            config,
            step.groups,
            (of) => {
              const scores = step.now.get(of)!;
              if (of !== episode) return scores;
              return { ...scores, [name]: scores[name].with(token, scores[name][token]! + change) };
            },
            scoresOf(step),
          ).loss;
        const width = 1e-4;
        const [below, here, above] = [lossAt(-width), lossAt(0), lossAt(width)];
        const slope = (above - below) / (2 * width);
        // Where a clip begins within the difference, there is no slope to compare with: it bends at the token itself,
        // or the slope over half the width is another.
        if (Math.abs(above - 2 * here + below) > 1e-6) continue;
        if (Math.abs((lossAt(width / 2) - lossAt(-width / 2)) / width - slope) > 1e-6) continue;
        const where = `TREADLE_SEED=${seed}, step ${each}, ${name} of token ${token}`;
        expect(Math.abs(own[name][token]! - slope), where).toBeLessThan(1e-5 * Math.max(1, Math.abs(slope)));
        compared += 1;
      }
    }
  }
  expect(compared).toBeGreaterThan(10);
});
