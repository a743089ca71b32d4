import { describe, expect, test } from "vitest";
import { z } from "zod";
import {
  AlgorithmConfig,
  algorithmNames,
  builtInRewards,
  checkGroupSize,
  createAlgorithm,
  createArithmeticTask,
} from "../src/index.ts";

const wrong: [string, () => unknown, string][] = [
  [
    "an unknown algorithm",
    () => createAlgorithm({ name: "grop" }),
    "algorithm.name is 'grop': allowed is one of 'grpo', 'dr-grpo', 'dapo', 'gspo', 'cispo', 'rloo', 'reinforce++', 'reinforce++-baseline', 'ppo'; did you mean 'grpo'",
  ],
  [
    "no algorithm",
    () => createAlgorithm({}),
    "algorithm.name is 'undefined': allowed is one of 'grpo', 'dr-grpo', 'dapo', 'gspo', 'cispo', 'rloo', 'reinforce++', 'reinforce++-baseline', 'ppo'",
  ],
  [
    "a value out of range",
    () => createAlgorithm({ name: "grpo", clipLow: -1 }),
    "algorithm.clipLow is '-1': allowed is a number >= 0",
  ],
  [
    "an exclusive bound",
    () => createAlgorithm({ name: "ppo", dualClip: 1 }),
    "algorithm.dualClip is '1': allowed is a number > 1",
  ],
  [
    "a wrong type",
    () => createAlgorithm({ name: "ppo", lambda: "high" }),
    "algorithm.lambda is 'high': allowed is a value of type number",
  ],
  [
    "a wrong choice",
    () => createAlgorithm({ name: "rloo", action: "episode" }),
    "algorithm.action is 'episode': allowed is one of 'sequence', 'token'",
  ],
  [
    "a KL where the algorithm has none",
    () => createAlgorithm({ name: "grpo", kl: { placement: "reward", coefficient: 1 } }),
    "algorithm.kl.placement is 'reward': allowed is one of 'none', 'loss'",
  ],
  [
    "a nested key out of range",
    () => createAlgorithm({ name: "grpo", kl: { placement: "loss", coefficient: 0 } }),
    "algorithm.kl.coefficient is '0': allowed is a number > 0",
  ],
  [
    "keys that do not fit together",
    () => createAlgorithm({ name: "dapo", overlong: { maxTokens: 4, bufferTokens: 5 } }),
    'algorithm.overlong is \'{"maxTokens":4,"bufferTokens":5}\': allowed is bufferTokens <= maxTokens',
  ],
  [
    "a reward's option",
    () => builtInRewards.create({ name: "arithmetic", partialCredit: 2 }),
    "reward.partialCredit is '2': allowed is a number <= 1",
  ],
  [
    "a task's range",
    () => createArithmeticTask({ minOperand: 9, maxOperand: 3 }),
    "task.maxOperand is '3': allowed is a number >= minOperand",
  ],
  [
    "a task's operator",
    () => createArithmeticTask({ operators: ["/"] }),
    "task.operators.0 is '/': allowed is one of '+', '-', '*'",
  ],
  ["an empty list", () => createArithmeticTask({ operators: [] }), "task.operators is '[]': allowed is a length >= 1"],
];

function messageOf(run: () => unknown): { code: string; message: string } {
  try {
    run();
  } catch (error) {
    return error as { code: string; message: string };
  }
  throw new Error("nothing was thrown");
}

describe("a wrong configuration names the key, the value and what is allowed", () => {
  test.each(wrong)("%s", (_, run, message) => {
    expect(messageOf(run)).toMatchObject({ code: "config.invalid", message });
  });

  test("an unknown key, with the nearest known one", () => {
    const { message } = messageOf(() => createAlgorithm({ name: "gspo", clipHi: 1 }, "actor.algorithm"));
    expect(message).toMatch(
      /^actor\.algorithm\.clipHi is not a known key: allowed keys are 'name', 'clipLow', .*; did you mean 'clipHigh'$/,
    );
  });

  test("an unknown key below another", () => {
    const { message } = messageOf(() =>
      createAlgorithm({ name: "dapo", overlong: { maxTokens: 4, bufferTokens: 2, max: 1 } }),
    );
    expect(message).toBe(
      "algorithm.overlong.max is not a known key: allowed keys are 'maxTokens', 'bufferTokens', 'penalty'",
    );
  });

  test("all problems at once", () => {
    const { message } = messageOf(() => createAlgorithm({ name: "ppo", discount: 2, lambda: -1 }));
    expect(message).toBe(
      "algorithm.discount is '2': allowed is a number <= 1; algorithm.lambda is '-1': allowed is a number >= 0",
    );
  });
});

test.each(algorithmNames)("%s: a group of one is refused where the baseline is the group's", (name) => {
  const Config = z.object({ algorithm: AlgorithmConfig, groupSize: z.int() }).superRefine(checkGroupSize);
  const problems = (groupSize: number) =>
    Config.safeParse({ algorithm: { name }, groupSize }).error?.issues.map(({ path, message }) => [
      path.join("."),
      message,
    ]);
  expect(problems(2)).toBeUndefined();
  if (name === "ppo" || name === "reinforce++") return expect(problems(1)).toBeUndefined();
  expect(problems(1)).toEqual([
    [
      "groupSize",
      `'${name}' compares the answers to one prompt: allowed is a number >= 2; raise it, or take 'reinforce++' or 'ppo', which compare none`,
    ],
  ]);
});

test.each(algorithmNames)("%s needs nothing but its name", (name) => {
  expect(createAlgorithm({ name }).config.name).toBe(name);
});
