import { type Prompt, TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { parseConfig } from "../config.ts";
import { createRandom, hashString, type Random } from "../random.ts";
import type { Tokenizer } from "../tokenizer.ts";
import { createCharacterTokenizer } from "./character-tokenizer.ts";
import { identityOf } from "./identity.ts";

/** Bounds products to 10^12 and so answers to exact integers. */
const operand = z.int().min(0).max(1_000_000);

export const ArithmeticTaskConfig = z
  .strictObject({
    /** of the draw of problems */
    seed: z.int().nonnegative().default(0),
    /** one is drawn for each problem */
    operators: z
      .array(z.enum(["+", "-", "*"]))
      .min(1)
      .default(["+"]),
    /** both operands are from this… */
    minOperand: operand.default(10),
    /** …to this */
    maxOperand: operand.default(99),
    /** writes answers with the least significant digit first, the order in which carries are known */
    reverseAnswer: z.boolean().default(false),
    /** share of problems kept for evaluation */
    heldOutFraction: z.number().min(0).lt(1).default(0.1),
    /** another number parts the problems into training, validation and held-out ones in another way */
    split: z.int().nonnegative().default(0),
    /** share of problems kept for choosing among policies, apart from those that judge the chosen one */
    validationFraction: z.number().min(0).lt(1).default(0.05),
  })
  .refine((value) => value.heldOutFraction + value.validationFraction < 1, {
    path: ["validationFraction"],
    error: "a number that leaves problems to train on beside heldOutFraction",
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
 * Whether a problem is for training, for validation or held out is decided by a hash of the problem and `split` alone: the sets are
 * disjoint for every seed, step and process. Where operands commute, both orders are one problem: 12+34 and 34+12 fall
 * together, and count once.
 */
export interface ArithmeticTask {
  readonly config: ArithmeticTaskConfig;
  readonly tokenizer: Tokenizer;
  /** tokens of the longest prompt, and of the longest answer with its stop token */
  readonly maxPromptTokens: number;
  readonly maxAnswerTokens: number;
  /**
   * The training prompts of a step, with ids that no other step uses. Depends on the seed and the step alone, and fewer
   * are a prefix of more, so a resumed run asks for the same step and gets the same prompts.
   */
  problemsAt(step: number, count: number): Prompt[];
  /** Prompts of `count` different held-out problems of the split, the same for every seed. Throws `config.invalid` if there are not so many. */
  heldOut(count: number): Prompt[];
  /** The same of the validation problems. */
  validation(count: number): Prompt[];
  /** Prompts of `count` different training problems, in either order of operands; which depends on the seed alone. */
  demonstrated(count: number): Prompt[];
  splitOf(problem: Pick<ArithmeticProblem, "left" | "operator" | "right">): ArithmeticSplit;
}

export type ArithmeticSplit = "training" | "validation" | "held-out";

/** Every character of a problem and its answer. */
export const arithmeticAlphabet = "0123456789+-*=";

/** Draws in vain after which a split is taken to have no (more) problems. */
const drawsPerProblem = 10_000;

/** Throws `config.invalid` for wrong keys under `path`. */
export function createArithmeticTask(value: unknown = {}, path = "task"): ArithmeticTask {
  const config = parseConfig<ArithmeticTaskConfig>(ArithmeticTaskConfig, value, path);
  const tokenizer = createCharacterTokenizer(arithmeticAlphabet);
  const training = createRandom(config.seed).split("arithmetic/training");

  const splitOf: ArithmeticTask["splitOf"] = (problem) => {
    const identity = identityOfProblem(problem);
    const share = hashString(config.split === 0 ? identity : `${config.split} ${identity}`) / 2 ** 32;
    if (share < config.heldOutFraction) return "held-out";
    return share < config.heldOutFraction + config.validationFraction ? "validation" : "training";
  };

  const draw = (random: Random, wanted: (problem: ArithmeticProblem) => boolean, what: string): ArithmeticProblem => {
    for (let attempt = 0; attempt < drawsPerProblem; attempt++) {
      const problem = drawProblem(random, config);
      if (wanted(problem)) return problem;
    }
    throw new TreadleError(
      "config.invalid",
      `no ${what} found with heldOutFraction '${config.heldOutFraction}', validationFraction ` +
        `'${config.validationFraction}' and operands '${config.minOperand}' to '${config.maxOperand}': widen the ` +
        `operands' range, change ${path}.heldOutFraction or ${path}.validationFraction, or ask for fewer`,
    );
  };

  const different = (split: ArithmeticSplit, random: Random, count: number): ArithmeticProblem[] => {
    const seen = new Set<string>();
    return Array.from({ length: count }, (_, index) => {
      const fresh = (candidate: ArithmeticProblem) =>
        splitOf(candidate) === split && !seen.has(identityOfProblem(candidate));
      const problem = draw(random, fresh, `${split} problem number '${index + 1}' of '${count}'`);
      seen.add(identityOfProblem(problem));
      return problem;
    });
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
    splitOf,
    problemsAt(step, count) {
      const random = training.split(step);
      return Array.from({ length: count }, (_, index) => {
        const problem = draw(random, (candidate) => splitOf(candidate) === "training", "training problem");
        return promptOf(problem, `@${step}.${index}`);
      });
    },
    heldOut(count) {
      const problems = different("held-out", createRandom("arithmetic/held-out"), count);
      return problems.map((problem, index) => promptOf(problem, `@held-out.${index}`));
    },
    validation(count) {
      const problems = different("validation", createRandom("arithmetic/validation"), count);
      return problems.map((problem, index) => promptOf(problem, `@validation.${index}`));
    },
    demonstrated(count) {
      const problems = different("training", createRandom(config.seed).split("arithmetic/demonstrated"), count);
      return problems.flatMap((problem, index) => {
        const turned = commuted(problem);
        return [problem, ...(turned ? [turned] : [])].map((order) => promptOf(order, `@demonstrated.${index}`));
      });
    },
  };
}

export type Accuracy = { readonly correct: number; readonly total: number; readonly accuracy: number };

/** Share of completions, `completions[i]` to `prompts[i]`, whose text up to the stop token is exactly the answer. */
export function measureAccuracy(
  prompts: readonly Prompt[],
  completions: readonly { readonly tokens: ArrayLike<number> }[],
  tokenizer: Pick<Tokenizer, "decode">,
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

const identityOfProblem = ({ left, operator, right }: Pick<ArithmeticProblem, "left" | "operator" | "right">): string =>
  identityOf(`${left}${operator}${right}`);

/** The same problem with its operands in the other order, where that is another text. */
function commuted(problem: ArithmeticProblem): ArithmeticProblem | undefined {
  const { left, operator, right } = problem;
  if (operator === "-" || left === right) return undefined;
  return { ...problem, left: right, right: left, text: `${right}${operator}${left}=` };
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
