/** A `RunnerState` whose processes are driven by hand: what it wants done is written down, and done when a test says so. */
import { TreadleError } from "@treadle/contracts";
import type { ComponentTraits, Incarnation, RunnerEffect, RunnerInput } from "../../src/runner/runner-messages.ts";
import { type RunnerOptions, RunnerState } from "../../src/runner/runner-state.ts";

export const limits: RunnerOptions = {
  supervision: {
    maxRestarts: 3,
    restartWindowMs: 10_000,
    heartbeatTimeoutMs: 1e9,
    stallMs: 1e9,
    lockTimeoutMs: 1e9,
    startTimeoutMs: 1000,
  },
  rejoinMs: 100,
  placeWaitMs: 1000,
  maxStaleness: 0,
};

export class RunnerWorld {
  readonly state: RunnerState;
  readonly effects: RunnerEffect[] = [];
  nowMs = 0;
  #sequence = 0;

  constructor(options: Partial<RunnerOptions> = {}) {
    this.state = new RunnerState({ ...limits, ...options }, 0);
    this.nodes("node:0");
  }

  feed(input: RunnerInput): readonly RunnerEffect[] {
    const effects = this.state.handle(input, this.nowMs);
    this.effects.push(...effects);
    return effects;
  }

  nodes(...present: string[]): readonly RunnerEffect[] {
    const places = present.flatMap((node) =>
      [0, 1].map((index) => ({
        id: `${node}/cpu:${index}`,
        kind: "cpu",
        node,
        index,
        memoryBytes: Number.MAX_SAFE_INTEGER,
        numa: 0,
      })),
    );
    return this.feed({ type: "nodes", present, places: places as never });
  }

  /** Makes one component of so many ranks, all on one device. */
  component(size: number, traits: Partial<ComponentTraits> = {}): void {
    this.feed({ type: "add-component", component: "actor", restart: "rank", resizes: false, replays: [], ...traits });
    const ranks = Array.from({ length: size }, () => ({ node: "node:0", devices: ["node:0/cpu:0"] }));
    this.feed({ type: "lay-out", components: { actor: { ranks } } });
  }

  id(worker: string): Incarnation {
    return { worker, incarnation: this.state.rank(worker)?.incarnation as number };
  }

  /** Its process starts and is set up. */
  up(worker: string): readonly RunnerEffect[] {
    const id = this.id(worker);
    this.feed({ type: "launched", ...id });
    this.feed({ type: "connected", ...id });
    return this.feed({ type: "ready", ...id, memoryBytes: 0 });
  }

  die(worker: string, id = this.id(worker)): readonly RunnerEffect[] {
    return this.feed({ type: "exited", ...id, code: null, signal: "SIGKILL", logTail: [] });
  }

  call(ranks: readonly number[], method = "work", step?: number): number {
    this.feed({ type: "call", sequence: ++this.#sequence, component: "actor", method, ranks, ends: [], step });
    return this.#sequence;
  }

  returned(call: string, savedPath?: string): readonly RunnerEffect[] {
    return this.feed({ type: "returned", ...this.id(workerOf(call)), call, savedPath });
  }

  threw(call: string, error: unknown): readonly RunnerEffect[] {
    return this.feed({ type: "threw", ...this.id(workerOf(call)), call, error });
  }

  /** The effects of one kind so far. */
  all<Type extends RunnerEffect["type"]>(type: Type): Extract<RunnerEffect, { type: Type }>[] {
    return this.effects.filter((effect): effect is Extract<RunnerEffect, { type: Type }> => effect.type === type);
  }

  get sent(): string[] {
    return this.all("send").map(({ call, incarnation }) => `${call} to ${incarnation}`);
  }
}

const workerOf = (call: string): string => `actor/${call.slice(call.indexOf("/") + 1)}`;

export const peerDied = (worker: string): TreadleError =>
  new TreadleError("link.closed", "its peer died", { origin: { worker } });
