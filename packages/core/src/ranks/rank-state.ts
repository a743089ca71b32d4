/**
 * One rank of a component over all its processes: where it is, how far its present process has come, and the calls that
 * are under way on it.
 *
 * ```text
 *                     link         setup done     load done     replays done
 *         starting ───▶ setting-up ───▶ loading ───▶ replaying ───▶ ready
 *          ▲   ▲  │        │              │             │            │ the plan moves it
 *          │   │  └────────┴──────┬───────┴─────────────┴────────────┤
 *  a place │   │ restart          │ its process ends              draining
 *    found │   └──────────────── down ◀──────────────────────────────┘
 *          │                      │ its node is gone (RT1)
 *          └────── placing ◀──────┘
 * ```
 *
 * - RK1 calls reach a process in the order in which they were made, also after a restart.
 * - RK2 what a process says that is not the rank's present incarnation changes nothing.
 * - RK3 a call settles once; the end of its process leaves it pending until the rank is ready again or the run fails.
 * - RK4 the ranks of a group that come up together load together, once each of them is set up.
 */
import type { RankPlacement } from "@treadle/contracts";
import type { AwaitedMessage, Incarnation } from "../runner/runner-messages.ts";
import type { RecoveryClock } from "./recovery.ts";

export const rankPhases = [
  "down",
  "placing",
  "starting",
  "setting-up",
  "loading",
  "replaying",
  "ready",
  "draining",
] as const;
export type RankPhase = (typeof rankPhases)[number];

/** What may follow what. `down` follows everything: a process can end at any instant. */
const successors: Readonly<Record<RankPhase, readonly RankPhase[]>> = {
  down: ["placing", "starting"],
  placing: ["starting", "down"],
  starting: ["setting-up", "down"],
  "setting-up": ["loading", "replaying", "ready", "down"],
  loading: ["replaying", "ready", "down"],
  replaying: ["ready", "down"],
  ready: ["draining", "down"],
  draining: ["down"],
};

export type PendingCall = {
  readonly call: string;
  readonly sequence: number;
  attempts: number;
  /** when it was first sent to a process that has not ended since */
  sentMs: number | undefined;
  /** it starts over, not before then, and not before the worker that it missed is back */
  retry: { readonly atMs: number; readonly culprit: string | undefined } | undefined;
};

export class RankState {
  readonly worker: string;
  readonly component: string;
  readonly index: number;
  /** of the first process here: larger than that of any process that had this name under an earlier plan */
  readonly firstIncarnation: number;
  incarnation: number;
  place: RankPlacement;
  /** on each of its devices while it is loaded, as its process said last */
  memoryBytes = 0;
  /** since when it is in its phase; undefined while a start is waited for that has not begun */
  sinceMs: number | undefined;
  /** of the present process, when it replaces another */
  recovery: RecoveryClock | undefined;
  readonly pending = new Map<string, PendingCall>();
  /** the call in which its present process gets its devices for its load */
  loadCall: string | undefined;
  /** messages that its present process waits for */
  awaits: readonly AwaitedMessage[] = [];
  /** when a call last returned; 0 before any has */
  returnedMs = 0;
  /** calls of earlier ones that its process must run before it is ready, the next one first */
  replays: readonly { readonly call: string; readonly of: number }[] = [];
  #phase: RankPhase = "down";

  constructor(component: string, index: number, place: RankPlacement, firstIncarnation = 0) {
    this.component = component;
    this.index = index;
    this.worker = `${component}/${index}`;
    this.place = place;
    this.firstIncarnation = firstIncarnation;
    this.incarnation = firstIncarnation;
  }

  /** its present process */
  get id(): Incarnation {
    return { worker: this.worker, incarnation: this.incarnation };
  }

  get phase(): RankPhase {
    return this.#phase;
  }

  enter(phase: RankPhase, nowMs?: number): void {
    if (phase !== "down" && !successors[this.#phase].includes(phase)) {
      throw new Error(`'${this.worker}' cannot go from '${this.#phase}' to '${phase}'`);
    }
    this.#phase = phase;
    this.sinceMs = nowMs;
  }

  /** In the order in which they were made (RK1). */
  get inOrder(): PendingCall[] {
    return [...this.pending.values()].sort((a, b) => a.sequence - b.sequence);
  }
}
