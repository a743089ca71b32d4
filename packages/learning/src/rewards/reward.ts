import { type Prompt, TreadleError } from "@treadle/contracts";
import type { Plugin, PluginRegistry } from "../plugin-registry.ts";

/** What a reward judges: the policy's tokens and their text, without the stop token. */
export type ScoredCompletion = { readonly tokens: Int32Array; readonly text: string };

/** Judges a completion. May be asynchronous (a sandbox, a model); `signal` aborts when nobody wants the answer any more. */
export interface Reward {
  readonly name: string;
  /** Before the first completion, in the process that scores: what can be found wrong is found here. */
  open?(log: RewardLog): Promise<void>;
  close?(): Promise<void>;
  score(prompt: Prompt, completion: ScoredCompletion, signal?: AbortSignal): number | Promise<number>;
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
  const who = `reward '${reward.name}' of prompt '${prompt.id}'`;
  const score = await (async () => reward.score(prompt, completion, signal))().catch((cause: unknown) => {
    if (signal?.aborted || (cause instanceof TreadleError && cause.disposition === "cancelled")) throw cause;
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new TreadleError("learning.reward-failed", `${who} failed: ${reason}`, { cause });
  });
  if (typeof score !== "number" || !Number.isFinite(score)) {
    throw new TreadleError("learning.reward-failed", `${who} is '${score}': allowed is a finite number`);
  }
  return score;
}

/** What a reward compares with; throws `learning.reward-failed` where the prompt has none. */
export function answerOf({ id, answer }: Prompt): string {
  if (answer !== undefined) return answer;
  throw new TreadleError(
    "learning.reward-failed",
    `prompt '${id}' has no answer: give it one, or use a reward that needs none`,
  );
}
