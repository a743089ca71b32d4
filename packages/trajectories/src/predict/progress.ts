import { z } from "zod";

/** What one turn of an episode took. */
export const Turn = z.strictObject({
  tokens: z.number().nonnegative(),
  toolSeconds: z.number().nonnegative().default(0),
  /** the tool's answer was an error, or said that something is wrong */
  hasToolFailed: z.boolean().default(false),
  /** tokens of the tool's answer */
  observedTokens: z.number().nonnegative().default(0),
  /** mean log-probability of the tokens, where the engine says it */
  meanLogProbability: z.number().max(0).optional(),
});
export type Turn = z.infer<typeof Turn>;

/** What became of a tool that was still at work when its turn was told of. */
export const ToolOutcome = Turn.pick({ toolSeconds: true, hasToolFailed: true, observedTokens: true });

/** What is predicted: how much of it an episode has still to come. */
export const quantities = ["tokens", "toolSeconds"] as const;
export type Quantity = (typeof quantities)[number];

/** log(1 + total) of the other samples of a group: of those that finished, and of those that run, so far. */
export type Siblings = { readonly finished: readonly number[]; readonly running: readonly number[] };

/** What an episode is ended by, whatever it would still have done. */
export type EpisodeLimits = {
  /** that it may choose in all */
  readonly maxTokens?: number | undefined;
  /** of its prompt, what it chooses and what tools say */
  readonly contextTokens?: number | undefined;
  readonly maxTurns?: number | undefined;
};

/** What is known of one episode before a turn, seen from one quantity. */
export type Progress = {
  readonly prompt: string;
  readonly contextTokens: number;
  readonly turns: number;
  /** of the quantity, so far */
  readonly spent: number;
  readonly generatedTokens: number;
  readonly toolSeconds: number;
  readonly numFailures: number;
  readonly last: Turn | undefined;
  /** of the quantity: what its limits leave at most */
  readonly mostLeft: number;
  readonly siblings: Siblings;
};

/** Turns that are counted together: early ones differ most. */
export const stages = ["0", "1", "2", "3-4", "5-8", "9+"] as const;

export function stageOf(turns: number): number {
  return turns <= 2 ? turns : turns <= 4 ? 3 : turns <= 8 ? 4 : 5;
}
