import type { Completion, Prompt } from "@treadle/contracts";
import type { EpisodeRouter } from "@treadle/trajectories";
import type { CallOrder } from "./call-order.ts";
import type { Span } from "./episode-stream.ts";
import type { EpisodeState } from "./rank-messages.ts";

/** One episode to play. */
export type EpisodeRow = { readonly prompt: Prompt; readonly key: number; readonly name: string };

/** Episodes that were placed together, by what was known when their prompts came. */
export type EpisodeBatch = {
  readonly base: number;
  readonly rows: readonly EpisodeRow[];
  readonly states: (EpisodeState | undefined)[];
  /** how often its host was lost, and with it what its tool held */
  readonly losses: number[];
  readonly router: EpisodeRouter;
  readonly order: CallOrder;
  readonly ended: (index: number, completion: Completion, answers: readonly Span[]) => void;
  readonly over: () => void;
};
