/**
 * A worker process on virtual time: runs the calls that the workflow makes of it one at a time, in the order in which
 * they were made, and carries out what they do. When a call ends it holds no device any more.
 *
 * Calls, channels and the lock are the runner's, so that every question and every answer is a message on its way.
 */
import type { EventQueue } from "./event-queue.ts";
import type { Command, RankProgram } from "./rank-program.ts";
import type { Recorder } from "./recorder.ts";
import type { Answer, ChannelEnd, SimulatedChannels } from "./simulated-channels.ts";
import type { SimulatedLocks } from "./simulated-locks.ts";

export type ProcessCall = {
  readonly call: string;
  readonly method: string;
  readonly step: number;
  readonly stream: string;
  readonly ends: readonly ChannelEnd[];
  readonly program: RankProgram;
  readonly onReply: () => void;
};

export type ProcessWorld = {
  readonly queue: EventQueue;
  readonly channels: SimulatedChannels;
  readonly locks: SimulatedLocks;
  readonly recorder: Recorder;
};

/** `lock` for a first grant, `loan` for devices that were lent, else the channel that has not answered. */
type Wait = { readonly on: "lock" | "loan" | "channel"; readonly name: string; readonly sinceMs: number };

export class SimulatedProcess {
  readonly worker: string;
  readonly #devices: readonly string[];
  readonly #messageMs: number;
  readonly #world: ProcessWorld;
  readonly #waitingCalls: ProcessCall[] = [];
  #current: ProcessCall | undefined;
  #startedMs = 0;
  #wait: Wait | undefined;
  #answer: Answer | undefined;

  /** `messageMs`: from this process to the runner, or back */
  constructor(worker: string, devices: readonly string[], messageMs: number, world: ProcessWorld) {
    this.worker = worker;
    this.#devices = devices;
    this.#messageMs = messageMs;
    this.#world = world;
  }

  get current(): ProcessCall | undefined {
    return this.#current;
  }

  submit(call: ProcessCall): void {
    this.#world.queue.after(this.#messageMs, () => {
      if (this.#current) this.#waitingCalls.push(call);
      else this.#begin(call);
    });
  }

  granted(): void {
    const answer = this.#answer;
    this.#answer = undefined;
    this.#world.queue.after(this.#messageMs, () => {
      const { name, sinceMs } = this.#wait as Wait;
      this.#wait = undefined;
      this.#record("lock-wait", name, sinceMs);
      this.#goOn(answer);
    });
  }

  /** A take or put that had to wait has been served; the devices that it lent may not be back yet. */
  answered(answer: Answer): void {
    this.#world.queue.after(0, () => {
      const { name, sinceMs } = this.#wait as Wait;
      this.#record("channel-wait", name, sinceMs);
      this.#answer = answer;
      this.#wait = { on: "loan", name: "device lock", sinceMs: this.#world.queue.nowMs };
      if (!this.#world.locks.served((this.#current as ProcessCall).call)) return;
      this.#wait = undefined;
      this.#answer = undefined;
      if (this.#messageMs === 0) this.#goOn(answer);
      else this.#world.queue.after(this.#messageMs, () => this.#goOn(answer));
    });
  }

  #begin(call: ProcessCall): void {
    this.#current = call;
    this.#startedMs = this.#world.queue.nowMs;
    this.#goOn(undefined);
  }

  /** Carries out commands until one has to wait. */
  #goOn(answer: Answer | undefined): void {
    const call = this.#current as ProcessCall;
    for (let last = answer; ; ) {
      const next = call.program.next(last?.type === "batch" ? last.items : undefined);
      if (next.done) {
        this.#end(call);
        return;
      }
      last = this.#carryOut(call, next.value);
      if (last === undefined) return;
    }
  }

  /** The answer, or undefined when it comes later. */
  #carryOut(call: ProcessCall, command: Command): Answer | undefined {
    const { queue, locks } = this.#world;
    const sinceMs = queue.nowMs;
    switch (command.op) {
      case "work":
        queue.after(command.ms, () => {
          this.#record("compute", call.method, sinceMs);
          this.#goOn(undefined);
        });
        return undefined;
      case "lock":
        if (this.#devices.length === 0) return { type: "accepted" };
        this.#wait = { on: "lock", name: "device lock", sinceMs };
        queue.after(this.#messageMs, () => locks.acquire(call.call));
        return undefined;
      default:
        this.#wait = { on: "channel", name: command.channel, sinceMs };
        if (this.#messageMs === 0) return this.#ask(call, command);
        queue.after(this.#messageMs, () => {
          const answer = this.#ask(call, command);
          if (!answer) return;
          queue.after(this.#messageMs, () => {
            this.#record("channel-wait", command.channel, sinceMs);
            this.#goOn(answer);
          });
        });
        return undefined;
    }
  }

  /** What a channel answers at once. */
  #ask(call: ProcessCall, { op, channel, items }: Extract<Command, { channel: string }>): Answer | undefined {
    const { channels, locks } = this.#world;
    const answer = op === "take" ? channels.take(call.call, channel, items) : channels.put(call.call, channel, items);
    if (answer) this.#wait = undefined;
    else locks.waits(call.call, { channel, stream: call.stream }, op);
    return answer;
  }

  /** The devices are released before the call is said to be over. */
  #end(call: ProcessCall): void {
    const { queue, locks } = this.#world;
    const isLocked = this.#devices.length > 0;
    queue.after(isLocked ? this.#messageMs : 0, () => {
      locks.release(call.call);
      queue.after(isLocked ? this.#messageMs : 0, () => {
        this.#record("call", call.method, this.#startedMs);
        this.#current = undefined;
        queue.after(this.#messageMs, () => call.onReply());
        const next = this.#waitingCalls.shift();
        if (next) this.#begin(next);
      });
    });
  }

  #record(category: "call" | "lock-wait" | "channel-wait" | "compute", name: string, startMs: number): void {
    const { queue, recorder } = this.#world;
    recorder.record(this.worker, {
      name,
      category,
      startMs,
      endMs: queue.nowMs,
      step: this.#current?.step,
      devices: this.#devices,
    });
  }
}
