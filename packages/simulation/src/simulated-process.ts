/**
 * A worker process on virtual time: runs the calls that the workflow makes of it one at a time, in the order in which
 * they were made, and carries out what they do. When a call ends it holds no device any more.
 *
 * Calls, channels and the lock are the runner's, so that every question and every answer is a message on its way.
 */
import { PacedClock } from "@treadle/contracts";
import type { Answer } from "@treadle/core";
import { clockOf, type Timeline } from "./event-queue.ts";
import type { SimulatedItem } from "./invariants.ts";
import type { Command, RankProgram } from "./rank-program.ts";
import type { Recorder } from "./recorder.ts";
import { itemsOf, type VirtualRunner } from "./virtual-runner.ts";

export type ProcessCall = {
  readonly call: string;
  readonly method: string;
  readonly step: number;
  readonly program: RankProgram;
  readonly onReply: () => void;
};

export type ProcessWorld = {
  readonly queue: Timeline;
  readonly runner: VirtualRunner;
  readonly recorder: Recorder;
  /** of a run beside others: what a rank has computed on its devices, each time that its turn ends, or its neighbours change */
  readonly onWorked?: ((worker: string, devices: readonly string[], done: Computed) => void) | undefined;
};

/** `paceMs`: of these milliseconds, how many it would have taken alone. */
export type Computed = {
  readonly paceMs: number;
  readonly ms: number;
  readonly forMs: number;
  readonly ends: boolean;
};

export class SimulatedProcess {
  readonly worker: string;
  readonly #devices: readonly string[];
  readonly #messageMs: number;
  readonly #world: ProcessWorld;
  readonly #waitingCalls: ProcessCall[] = [];
  #current: ProcessCall | undefined;
  #startedMs = 0;
  /** of its computing: others slow it down */
  readonly #work: PacedClock;
  /** since when it has its devices, what it has computed since then, and since when it computes */
  #turn: { sinceMs: number; ms: number; paceMs: number } | undefined;
  #computesSince: { readonly ms: number; readonly paceMs: number } | undefined;

  /** `messageMs`: from this process to the runner, or back */
  constructor(worker: string, devices: readonly string[], messageMs: number, world: ProcessWorld) {
    this.worker = worker;
    this.#devices = devices;
    this.#messageMs = messageMs;
    this.#world = world;
    this.#work = new PacedClock(clockOf(world.queue));
  }

  /** Its computing takes so many times as long from here on. */
  slow(pace: number): void {
    if (pace === this.#work.pace) return;
    this.#tellWorked(false);
    this.#work.pace = pace;
  }

  get devices(): readonly string[] {
    return this.#devices;
  }

  #tellWorked(ends: boolean): void {
    if (this.#turn === undefined) return;
    const computes = this.#computesSince !== undefined;
    if (computes) this.#rest();
    const { sinceMs, ms, paceMs } = this.#turn;
    const { nowMs } = this.#world.queue;
    if (ms > 0 || ends)
      this.#world.onWorked?.(this.worker, this.#devices, { paceMs, ms, forMs: nowMs - sinceMs, ends });
    this.#turn = ends ? undefined : { sinceMs: nowMs, ms: 0, paceMs: 0 };
    if (computes) this.#compute();
  }

  #compute(): void {
    this.#computesSince = { ms: this.#world.queue.nowMs, paceMs: this.#work.now() };
  }

  #rest(): void {
    if (this.#turn && this.#computesSince) {
      this.#turn.ms += this.#world.queue.nowMs - this.#computesSince.ms;
      this.#turn.paceMs += this.#work.now() - this.#computesSince.paceMs;
    }
    this.#computesSince = undefined;
  }

  submit(call: ProcessCall): void {
    this.#world.queue.after(this.#messageMs, () => {
      if (this.#current) this.#waitingCalls.push(call);
      else this.#begin(call);
    });
  }

  #begin(call: ProcessCall): void {
    this.#current = call;
    this.#startedMs = this.#world.queue.nowMs;
    this.#goOn(undefined);
  }

  #goOn(items: readonly SimulatedItem[] | undefined): void {
    const call = this.#current as ProcessCall;
    const next = call.program.next(items);
    if (next.done) this.#end(call);
    else this.#carryOut(call, next.value);
  }

  #carryOut({ call, method }: ProcessCall, command: Command): void {
    const { queue, runner } = this.#world;
    const sinceMs = queue.nowMs;
    switch (command.op) {
      case "work":
        this.#compute();
        this.#work.after(command.ms, () => {
          this.#rest();
          this.#record("compute", method, sinceMs);
          this.#goOn(undefined);
        });
        return;
      case "lock":
        if (this.#devices.length === 0) this.#goOn(undefined);
        else
          this.#onItsWay(() =>
            runner.acquire(call, () =>
              this.#onItsWay(() => {
                this.#turn ??= { sinceMs: queue.nowMs, ms: 0, paceMs: 0 };
                this.#record("lock-wait", "device lock", sinceMs);
                this.#goOn(undefined);
              }),
            ),
          );
        return;
      case "commit": {
        const { channel, items, outputs } = command;
        this.#onItsWay(() => runner.commit(call, channel, items, outputs, () => {}));
        this.#goOn(undefined);
        return;
      }
      default: {
        const { op, channel, items } = command;
        const onAnswer = (answer: Answer, servedMs: number | undefined) =>
          this.#onItsWay(() => {
            this.#record("channel-wait", channel, sinceMs, servedMs);
            if (servedMs !== undefined) this.#record("lock-wait", "device lock", servedMs);
            this.#goOn(answer.type === "batch" ? itemsOf(answer.items) : undefined);
          });
        this.#onItsWay(() => {
          if (op === "take") runner.take(call, channel, items, onAnswer);
          else runner.put(call, channel, items, onAnswer);
        });
      }
    }
  }

  /** A message to the runner, or back. */
  #onItsWay(arrives: () => void): void {
    if (this.#messageMs === 0) arrives();
    else this.#world.queue.after(this.#messageMs, arrives);
  }

  #end(call: ProcessCall): void {
    this.#tellWorked(true);
    this.#record("call", call.method, this.#startedMs);
    this.#current = undefined;
    this.#world.queue.after(this.#messageMs, () => call.onReply());
    const next = this.#waitingCalls.shift();
    if (next) this.#begin(next);
  }

  #record(
    category: "call" | "lock-wait" | "channel-wait" | "compute",
    name: string,
    startMs: number,
    endMs = this.#world.queue.nowMs,
  ): void {
    const step = this.#current?.step;
    this.#world.recorder.record(this.worker, { name, category, startMs, endMs, step, devices: this.#devices });
  }
}
