import { type Prompt, TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { parseConfig } from "../config.ts";
import { createRandom, hashString, type Random } from "../random.ts";
import { arithmeticAlphabet } from "./arithmetic.ts";
import { createCharacterTokenizer } from "./character-tokenizer.ts";
import { identityOf } from "./identity.ts";

export const ChainTaskConfig = z
  .strictObject({
    kind: z.literal("chains"),
    seed: z.int().nonnegative().default(0),
    operators: z
      .array(z.enum(["+", "-", "*"]))
      .min(1)
      .default(["+", "-"]),
    minOperand: z.int().min(0).max(1_000_000).default(1),
    maxOperand: z.int().min(0).max(1_000_000).default(9),
    /** no intermediate result is below 0 or above this */
    maxResult: z.int().positive().max(1_000_000).default(99),
    /** longest chain */
    maxOperations: z.int().positive().max(64).default(6),
    /** a chain has at least n operations with probability n ^ -tail: the smaller, the more long ones */
    tail: z.number().positive().default(1.1),
    /** share of chains kept for evaluation, and for choosing among policies */
    heldOutFraction: z.number().min(0).lt(1).default(0.1),
    validationFraction: z.number().min(0).lt(1).default(0.05),
    /** another number parts the chains into training, validation and held-out ones in another way */
    split: z.int().nonnegative().default(0),
  })
  .refine(({ heldOutFraction, validationFraction }) => heldOutFraction + validationFraction < 1, {
    path: ["validationFraction"],
    error: "a number that leaves chains to train on beside heldOutFraction",
  })
  .refine(({ minOperand, maxOperand, maxResult }) => minOperand <= maxOperand && maxOperand <= maxResult, {
    path: ["maxOperand"],
    error: "a number from minOperand to maxResult",
  });
export type ChainTaskConfig = z.infer<typeof ChainTaskConfig>;

/** What a workflow asks of a task: prompts of a step, and others that no step has. */
export interface PromptTask {
  problemsAt(step: number, count: number): Prompt[];
  heldOut(count: number): Prompt[];
  validation(count: number): Prompt[];
  demonstrated(count: number): Prompt[];
}

type Split = "training" | "validation" | "held-out";

/** Draws in vain after which a split is taken to have no (more) chains. */
const drawsPerChain = 10_000;

/**
 * Chains of operations, worked out from left to right, of heavy-tailed length: `3+5-2=====` has the answer 6. All are as wide as
 * the longest, filled up with `=`, so that each turn of an episode has its characters in the same places. Prompts of a step
 * depend on the seed and the step alone; the split of a chain on its text and `split` alone. Chains that differ by the order in
 * which they begin to add or multiply are one. Chains that are not for training are different ones, so that long ones are more frequent among them: of short ones there are few. Throws `config.invalid`.
 */
export function createChainTask(value: unknown, path = "task"): PromptTask {
  const config = parseConfig<ChainTaskConfig>(ChainTaskConfig, value, path);
  const tokenizer = createCharacterTokenizer(arithmeticAlphabet);
  const training = createRandom(config.seed).split("chains/training");
  const width = (config.maxOperations + 1) * (`${config.maxOperand}`.length + 1);

  const splitOf = (text: string): Split => {
    const share = hashString(`${config.split} ${identityOf(text)}`) / 2 ** 32;
    if (share < config.heldOutFraction) return "held-out";
    return share < config.heldOutFraction + config.validationFraction ? "validation" : "training";
  };
  const draw = (random: Random, split: Split, seen?: Set<string>): string => {
    for (let attempt = 0; attempt < drawsPerChain; attempt++) {
      const text = drawChain(random, config);
      if (text === undefined || splitOf(text) !== split || seen?.has(identityOf(text))) continue;
      seen?.add(identityOf(text));
      return text;
    }
    throw new TreadleError(
      "config.invalid",
      `no more ${split} chains found with operands '${config.minOperand}' to '${config.maxOperand}', results up to '${config.maxResult}', heldOutFraction '${config.heldOutFraction}' and validationFraction '${config.validationFraction}': widen the operands' range, change the fractions below ${path}, or ask for fewer`,
    );
  };
  const promptOf = (text: string, occurrence: string): Prompt => ({
    id: `${text}=${occurrence}`,
    tokens: tokenizer.encode(text.padEnd(width, "=")),
    answer: workedOut(text),
  });
  const different = (split: Split, random: Random, count: number): Prompt[] => {
    const seen = new Set<string>();
    return Array.from({ length: count }, (_, index) => promptOf(draw(random, split, seen), `@${split}.${index}`));
  };

  return {
    problemsAt(step, count) {
      const random = training.split(step);
      return Array.from({ length: count }, (_, index) => promptOf(draw(random, "training"), `@${step}.${index}`));
    },
    heldOut: (count) => different("held-out", createRandom("chains/held-out"), count),
    validation: (count) => different("validation", createRandom("chains/validation"), count),
    demonstrated: (count) => different("training", createRandom(config.seed).split("chains/demonstrated"), count),
  };
}

/** A chain with its first operation done: `3+5-2` becomes `8-2`, whatever it is filled up with; undefined for what has none. */
export function firstDone(chain: string): string | undefined {
  const found = /^(\d+)([-+*])(\d+)((?:[-+*]\d+)*)=*$/.exec(chain);
  if (!found) return undefined;
  const [, left, operator, right, rest] = found as unknown as [string, string, string, string, string];
  return `${apply(Number(left), operator, Number(right))}${rest}`;
}

function workedOut(chain: string): string {
  let left = chain;
  for (let next = firstDone(left); next !== undefined; next = firstDone(left)) left = next;
  return left;
}

const apply = (left: number, operator: string, right: number): number =>
  operator === "+" ? left + right : operator === "-" ? left - right : left * right;

/** Undefined where a result would leave the range whatever came next. */
function drawChain(random: Random, config: ChainTaskConfig): string | undefined {
  const { operators, minOperand, maxOperand, maxResult, maxOperations, tail } = config;
  const numOperations = Math.min(maxOperations, Math.floor((1 - random.float()) ** (-1 / tail)));
  const operand = () => minOperand + random.integer(maxOperand - minOperand + 1);
  let result = operand();
  let text = `${result}`;
  for (let operation = 0; operation < numOperations; operation++) {
    const operator = operators[random.integer(operators.length)] as string;
    const right = operand();
    result = apply(result, operator, right);
    if (result < 0 || result > maxResult) return undefined;
    text += `${operator}${right}`;
  }
  return text;
}
