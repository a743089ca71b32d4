import { type Prompt, TreadleError, thrownText } from "@treadle/contracts";
import type { Plugin, PluginRegistry } from "../plugin-registry.ts";

/** What a reward judges: the policy's tokens and their text, without the stop token. */
export type ScoredCompletion = {
  readonly tokens: Int32Array;
  readonly text: string;
  /** of an episode with a tool: all that the policy wrote, calls included, and what the tool answered; `text` is that of the last turn */
  readonly turns?: readonly ScoredTurn[] | undefined;
};

/**
 * A turn of the policy's, and what its tool answered, which the last one has not: as the policy reads it, without the `call.end` after it.
 * Of a call that failed it is `call.failure`.
 */
export type ScoredTurn = { readonly text: string; readonly answer?: string | undefined };

/** What a completion has earned in all; or what each of its turns has, whose sum it earns unless `reward` says otherwise. */
export type Score = number | { readonly reward?: number | undefined; readonly turns: readonly number[] };

/** Judges a completion. May be asynchronous (a sandbox, a model); `signal` aborts when nobody wants the answer any more. */
export interface Reward {
  readonly name: string;
  /** Before the first completion, in the process that scores: what can be found wrong is found here. */
  open?(log: RewardLog): Promise<void>;
  close?(): Promise<void>;
  score(prompt: Prompt, completion: ScoredCompletion, signal?: AbortSignal): Score | Promise<Score>;
}

export type RewardLog = { warn(message: string): void };

/** A kind of reward. */
export type RewardPlugin = Plugin<Reward>;

/** Rewards by name. */
export type RewardRegistry = PluginRegistry<Reward>;

/**
 * Scores one completion. Throws `learning.reward-failed`, naming the reward and the prompt, when the plugin throws or
 * answers anything but a finite number; a cancellation passes through as it is.
 */
export async function scoreCompletion(
  reward: Reward,
  prompt: Prompt,
  completion: ScoredCompletion,
  signal?: AbortSignal,
): Promise<number> {
  return (await scoreTurns(reward, prompt, completion, signal)).reward;
}

/** The same, with what each turn has earned, where the reward says so. */
export async function scoreTurns(
  reward: Reward,
  prompt: Prompt,
  completion: ScoredCompletion,
  signal?: AbortSignal,
): Promise<{ readonly reward: number; readonly turns?: readonly number[] }> {
  const who = `reward '${reward.name}' of prompt '${prompt.id}'`;
  const score: unknown = await (async () => reward.score(prompt, completion, signal))().catch((cause: unknown) => {
    if (signal?.aborted || (cause instanceof TreadleError && cause.disposition === "cancelled")) throw cause;
    throw new TreadleError("learning.reward-failed", `${who} failed: ${thrownText(cause)}`, { cause });
  });
  const refuse = (what: string): TreadleError => new TreadleError("learning.reward-failed", `${who} ${what}`);
  const finite = (value: unknown): value is number => typeof value === "number" && Number.isFinite(value);
  if (typeof score !== "object" || score === null || !("turns" in score)) {
    if (finite(score)) return { reward: score };
    if (typeof score !== "object" || score === null)
      throw refuse(`is '${thrownText(score)}': allowed is a finite number, or 'turns' with one for each turn`);
    const keys = Object.keys(score).join("', '");
    throw refuse(`is an object of '${keys}': allowed is a finite number, or 'turns' with one for each turn`);
  }
  const { turns, reward: total } = score as { readonly turns: unknown; readonly reward?: unknown };
  const numTurns = completion.turns?.length ?? 1;
  if (!Array.isArray(turns) || turns.length !== numTurns)
    throw refuse(
      `has rewards of '${Array.isArray(turns) ? turns.length : typeof turns}' turns: allowed is one for each of its '${numTurns}' turns`,
    );
  const wrong = turns.findIndex((turn) => !finite(turn));
  if (wrong >= 0) throw refuse(`is '${thrownText(turns[wrong])}' for turn '${wrong}': allowed is a finite number`);
  const sum = turns.reduce((all: number, turn: number) => all + turn, 0);
  if (total !== undefined && !finite(total)) throw refuse(`is '${thrownText(total)}': allowed is a finite number`);
  if (!finite(sum)) throw refuse(`has turns that sum to '${sum}': allowed is a finite number; scale them`);
  return { reward: total ?? sum, turns };
}

/** What a reward compares with; throws `learning.reward-failed` where the prompt has none. */
export function answerOf({ id, answer }: Prompt): string {
  if (answer !== undefined) return answer;
  throw new TreadleError(
    "learning.reward-failed",
    `prompt '${id}' has no answer: give it one, or use a reward that needs none`,
  );
}
