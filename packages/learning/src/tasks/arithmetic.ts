import { type Prompt, TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { parseConfig } from "../config.ts";
import { createRandom, hashString, type Random } from "../random.ts";
import { type CharacterTokenizer, createCharacterTokenizer } from "./character-tokenizer.ts";

/** Bounds products to 10^12 and so answers to exact integers. */
const operand = z.int().min(0).max(1_000_000);

export const ArithmeticTaskConfig = z
  .strictObject({
    seed: z.int().nonnegative().default(0),
    operators: z
      .array(z.enum(["+", "-", "*"]))
      .min(1)
      .default(["+"]),
    minOperand: operand.default(10),
    maxOperand: operand.default(99),
    /** writes answers with the least significant digit first, the order in which carries are known */
    reverseAnswer: z.boolean().default(false),
    /** share of problems kept for evaluation */
    heldOutFraction: z.number().min(0).lt(1).default(0.1),
  })
  .refine((value) => value.minOperand <= value.maxOperand, {
    path: ["maxOperand"],
    error: "a number >= minOperand",
  });
export type ArithmeticTaskConfig = z.infer<typeof ArithmeticTaskConfig>;

export type ArithmeticProblem = {
  readonly left: number;
  readonly operator: "+" | "-" | "*";
  readonly right: number;
  /** `12+34=` */
  readonly text: string;
  readonly answer: string;
};

/**
 * Arithmetic problems as prompts, one token a character.
 *
 * Whether a problem is for training or held out is decided by a hash of the problem alone (of its operands in order of
 * size where they commute, so 12+34 and 34+12 fall together): the two sets are disjoint for every seed, step and process.
 */
export interface ArithmeticTask {
  readonly config: ArithmeticTaskConfig;
  readonly tokenizer: CharacterTokenizer;
  /** tokens of the longest prompt, and of the longest answer with its stop token */
  readonly maxPromptTokens: number;
  readonly maxAnswerTokens: number;
  /**
   * The training prompts of a step, with ids that no other step uses. Depends on the seed and the step alone, and fewer
   * are a prefix of more, so a resumed run asks for the same step and gets the same prompts.
   */
  problemsAt(step: number, count: number): Prompt[];
  /** `count` different held-out prompts, the same for every seed. Throws `config.invalid` if there are not so many. */
  heldOut(count: number): Prompt[];
  isHeldOut(problem: Pick<ArithmeticProblem, "left" | "operator" | "right">): boolean;
  /** Prompt, answer and stop token, learned from the answer on: for a supervised warm-up. */
  demonstration(prompt: Prompt): { tokens: Int32Array; mask: Float32Array };
}

/** Every character of a problem and its answer. */
export const arithmeticAlphabet = "0123456789+-*=";

/** Draws in vain after which a split is taken to have no (more) problems. */
const drawsPerProblem = 10_000;

/** Throws `config.invalid` for wrong keys under `path`. */
export function createArithmeticTask(value: unknown = {}, path = "task"): ArithmeticTask {
  const config = parseConfig<ArithmeticTaskConfig>(ArithmeticTaskConfig, value, path);
  const tokenizer = createCharacterTokenizer(arithmeticAlphabet);
  const training = createRandom(config.seed).split("arithmetic/training");

  const isHeldOut: ArithmeticTask["isHeldOut"] = ({ left, operator, right }) => {
    const [first, second] = operator !== "-" && left > right ? [right, left] : [left, right];
    return hashString(`${first}${operator}${second}`) < config.heldOutFraction * 2 ** 32;
  };

  const draw = (random: Random, wanted: (problem: ArithmeticProblem) => boolean, what: string): ArithmeticProblem => {
    for (let attempt = 0; attempt < drawsPerProblem; attempt++) {
      const problem = drawProblem(random, config);
      if (wanted(problem)) return problem;
    }
    throw new TreadleError(
      "config.invalid",
      `no ${what} found with heldOutFraction '${config.heldOutFraction}' and operands '${config.minOperand}' to ` +
        `'${config.maxOperand}': widen the operands' range, change ${path}.heldOutFraction, or ask for fewer`,
    );
  };

  const promptOf = (problem: ArithmeticProblem, occurrence: string): Prompt => ({
    id: `${problem.text}${occurrence}`,
    tokens: tokenizer.encode(problem.text),
    answer: problem.answer,
  });

  return {
    config,
    tokenizer,
    maxPromptTokens: 2 * String(config.maxOperand).length + 2,
    maxAnswerTokens: longestAnswer(config) + 1,
    isHeldOut,
    problemsAt(step, count) {
      const random = training.split(step);
      return Array.from({ length: count }, (_, index) => {
        const problem = draw(random, (candidate) => !isHeldOut(candidate), "training problem");
        return promptOf(problem, `@${step}.${index}`);
      });
    },
    heldOut(count) {
      const random = createRandom("arithmetic/held-out");
      const seen = new Set<string>();
      return Array.from({ length: count }, (_, index) => {
        const fresh = (candidate: ArithmeticProblem) => isHeldOut(candidate) && !seen.has(candidate.text);
        const problem = draw(random, fresh, `held-out problem number '${index + 1}' of '${count}'`);
        seen.add(problem.text);
        return promptOf(problem, `@held-out.${index}`);
      });
    },
    demonstration(prompt) {
      const answer = tokenizer.encode(prompt.answer ?? "");
      const tokens = Int32Array.of(...prompt.tokens, ...answer, tokenizer.stopToken);
      return { tokens, mask: Float32Array.from(tokens, (_, token) => (token < prompt.tokens.length ? 0 : 1)) };
    },
  };
}

export type Accuracy = { readonly correct: number; readonly total: number; readonly accuracy: number };

/** Share of completions, `completions[i]` to `prompts[i]`, whose text up to the stop token is exactly the answer. */
export function measureAccuracy(
  prompts: readonly Prompt[],
  completions: readonly { readonly tokens: ArrayLike<number> }[],
  tokenizer: Pick<CharacterTokenizer, "decode">,
): Accuracy {
  if (prompts.length !== completions.length) {
    throw new TreadleError(
      "learning.invalid-batch",
      `'${completions.length}' completions to '${prompts.length}' prompts: allowed is one each`,
    );
  }
  const correct = prompts.filter(
    (prompt, index) => prompt.answer !== undefined && tokenizer.decode(completions[index]!.tokens) === prompt.answer,
  ).length;
  return { correct, total: prompts.length, accuracy: prompts.length === 0 ? 0 : correct / prompts.length };
}

function drawProblem(random: Random, config: ArithmeticTaskConfig): ArithmeticProblem {
  const range = config.maxOperand - config.minOperand + 1;
  const left = config.minOperand + random.integer(range);
  const right = config.minOperand + random.integer(range);
  const operator = config.operators[random.integer(config.operators.length)]!;
  const result = operator === "+" ? left + right : operator === "-" ? left - right : left * right;
  const forward = String(result);
  return {
    left,
    operator,
    right,
    text: `${left}${operator}${right}=`,
    answer: config.reverseAnswer ? [...forward].reverse().join("") : forward,
  };
}

function longestAnswer({ operators, minOperand, maxOperand }: ArithmeticTaskConfig): number {
  const extremes = operators.map((operator) =>
    operator === "+" ? 2 * maxOperand : operator === "*" ? maxOperand * maxOperand : minOperand - maxOperand,
  );
  return Math.max(...extremes.map((extreme) => String(extreme).length));
}
