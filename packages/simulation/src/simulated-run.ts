/**
 * A run on virtual time: the workflow's steps over simulated processes, channels and locks.
 *
 * Each step, as a workflow does it: calls that use no channel, which it waits for; then the batch is put and every other
 * method is called, in the order of the graph, without waiting. Step order and staleness are those of the runtime (W2).
 */
import { type ComponentProfile, TreadleError } from "@treadle/contracts";
import { describeStandstill, runnerName, StepOrder } from "@treadle/runtime/state-machines";
import type { Durations } from "./durations.ts";
import { EventQueue } from "./event-queue.ts";
import { Invariants } from "./invariants.ts";
import { CallProgress, emptyingProgram, methodProgram, type RankProgram, serialProgram } from "./rank-program.ts";
import { Recorder } from "./recorder.ts";
import { type ChannelEnd, keyOf, SimulatedChannels } from "./simulated-channels.ts";
import { type LockedWorker, SimulatedLocks } from "./simulated-locks.ts";
import { SimulatedProcess } from "./simulated-process.ts";
import type { ComponentModel, Flow, MethodModel, WorkflowModel } from "./workflow-model.ts";

export type SimulatedRunOptions = {
  readonly model: WorkflowModel;
  readonly durations: Durations;
  readonly steps: number;
  readonly maxStaleness: number;
  /** items that a channel holds before a put waits */
  readonly capacityOf: (channel: string) => number;
  /** bytes by device */
  readonly memory: ReadonlyMap<string, number>;
  /** bytes of a component's ranks on each of their devices */
  readonly bytesOf: (component: ComponentModel) => number;
  readonly keepsSpans: boolean;
};

export type SimulatedStep = {
  readonly step: number;
  readonly startMs: number;
  readonly endMs: number;
  readonly seconds: number;
};

type GroupCall = {
  readonly calls: string[];
  numReplies: number;
  readonly isGang: boolean;
  readonly onSettled: () => void;
};

export class SimulatedRun {
  readonly recorder: Recorder;
  readonly steps: SimulatedStep[] = [];
  readonly #options: SimulatedRunOptions;
  readonly #queue = new EventQueue();
  readonly #invariants: Invariants;
  readonly #channels: SimulatedChannels;
  readonly #locks: SimulatedLocks;
  readonly #order: StepOrder;
  readonly #processes = new Map<string, SimulatedProcess>();
  readonly #byCall = new Map<string, SimulatedProcess>();
  readonly #runnerPuts = new Map<string, () => void>();
  readonly #starts = new Map<number, number>();
  #sequence = 0;
  #nextStep = 1;
  #isInBody = false;

  constructor(options: SimulatedRunOptions) {
    const { model, capacityOf, memory, maxStaleness, keepsSpans } = options;
    this.#options = options;
    this.recorder = new Recorder(keepsSpans);
    // Whoever waits for credit lets its consumers before it, so L2 is strict only where nobody does.
    const flows = model.components.flatMap(({ methods }) => methods.flatMap(flowsOf));
    const isRoomy = flows.every(({ channel, items }) => items <= capacityOf(channel));
    this.#invariants = new Invariants({ memory, isOrderPlain: model.isOrderPlain && isRoomy });
    this.#order = new StepOrder({ maxStaleness, nowMs: 0 });
    this.#channels = new SimulatedChannels(model.channels, {
      now: () => this.#queue.nowMs,
      capacityOf,
      invariants: this.#invariants,
      onEnqueued: (call) => this.#locks.enqueued(call),
      onAnswer: (call, answer) => {
        const process = this.#byCall.get(call);
        if (process) process.answered(answer);
        else this.#runnerPuts.get(call)?.();
      },
    });
    const devicesOf = new Map<string, readonly string[]>();
    const workers = model.components.flatMap((component) =>
      component.ranks.map(({ worker, devices }): LockedWorker => {
        devicesOf.set(worker, devices);
        const { onloadSeconds, offloadSeconds } = component.profile;
        const bytes = options.bytesOf(component);
        return { worker, devices, bytes, onloadMs: onloadSeconds * 1000, offloadMs: offloadSeconds * 1000 };
      }),
    );
    this.#locks = new SimulatedLocks({
      queue: this.#queue,
      memory,
      workers,
      invariants: this.#invariants,
      onGrant: (call) => this.#byCall.get(call)?.granted(),
      onSwap: (worker, category, startMs) => {
        const devices = devicesOf.get(worker);
        this.recorder.record(worker, { name: category, category, startMs, endMs: this.#queue.nowMs, devices });
      },
    });
    const world = { queue: this.#queue, channels: this.#channels, locks: this.#locks, recorder: this.recorder };
    this.#processes.set(runnerName, new SimulatedProcess(runnerName, [], 0, world));
    for (const { ranks, profile } of model.components)
      for (const { worker, devices } of ranks)
        this.#processes.set(worker, new SimulatedProcess(worker, devices, messageMs(profile), world));
  }

  get nowMs(): number {
    return this.#queue.nowMs;
  }

  /** Throws `problem.invalid` with who waits for whom when the plan comes to a standstill. */
  execute(): void {
    this.#beginSteps();
    while (this.#queue.runNext());
    if (this.steps.length < this.#options.steps) throw this.#standstill();
    this.#checkCredit();
  }

  // Steps.

  #beginSteps(): void {
    while (!this.#isInBody && this.#nextStep <= this.#options.steps) {
      if (this.#order.blockerOf(this.#nextStep) !== undefined) return; // W2
      const step = this.#nextStep++;
      this.#isInBody = true;
      this.#starts.set(step, this.#queue.nowMs);
      this.#order.begin(step, this.#queue.nowMs);
      this.#queue.after(this.#options.model.overheadMs, () => this.#callSerial(step, () => this.#putInputs(step, 0)));
    }
  }

  #callSerial(step: number, then: () => void): void {
    const serial = this.#options.model.components.filter((component) => component.serialMs > 0);
    let left = serial.length;
    if (left === 0) then();
    for (const component of serial) {
      this.#call(
        component,
        "serial",
        step,
        [],
        () => serialProgram(component.serialMs),
        () => {
          left--;
          if (left === 0) then();
        },
      );
    }
  }

  /** The runner waits for each put, as `await channel.put()` does. */
  #putInputs(step: number, from: number): void {
    const { inputs } = this.#options.model;
    for (let at = from; at < inputs.length; at++) {
      const { channel, items } = inputs[at] as { channel: string; items: number };
      if (items === 0) continue;
      const stream = streamOf(step);
      const call = `${runnerName}:${channel}:${step}`;
      this.#channels.open(call, runnerName, [{ channel, role: "sink", stream }]);
      const accepted = this.#channels.put(call, channel, items);
      if (!accepted) {
        this.#runnerPuts.set(call, () => {
          this.#channels.close(call);
          this.#queue.after(0, () => this.#putInputs(step, at + 1));
        });
        return;
      }
      this.#channels.close(call);
    }
    this.#callMethods(step);
  }

  #callMethods(step: number): void {
    const { model, durations } = this.#options;
    for (const component of model.components) {
      for (const method of component.methods) {
        const progress = new CallProgress();
        const program = (rank: number) => methodProgram({ model, durations, component, method, rank, step, progress });
        this.#call(component, method.name, step, endsOf(method, streamOf(step)), program);
      }
    }
    for (const channel of model.outputs) {
      const ends = [{ channel, role: "source" as const, stream: streamOf(step) }];
      const ranks = [{ worker: runnerName, devices: [] }];
      this.#call({ ranks, isGang: false }, channel, step, ends, () => emptyingProgram(channel));
    }
    this.#isInBody = false;
    this.#order.bodyEnded(step);
    this.#commitSteps();
    this.#beginSteps();
  }

  #commitSteps(): void {
    for (const step of this.#order.due()) {
      const seconds = this.#order.secondsOf(step, this.#queue.nowMs);
      const startMs = this.#starts.get(step) as number;
      const endMs = this.#queue.nowMs;
      this.steps.push({ step, startMs, endMs, seconds });
      this.recorder.record(runnerName, { name: `step ${step}`, category: "step", startMs, endMs, step });
      this.#order.committed(step);
      this.#checkCredit();
    }
  }

  // Calls.

  #call(
    component: Pick<ComponentModel, "ranks" | "isGang">,
    method: string,
    step: number,
    ends: readonly ChannelEnd[],
    program: (rank: number) => RankProgram,
    onSettled: () => void = () => {},
  ): void {
    const sequence = ++this.#sequence;
    const { ranks, isGang } = component;
    const calls = ranks.map((_, rank) => `${sequence}/${rank}`);
    const gang = isGang ? `call-${sequence}` : undefined;
    const group: GroupCall = { calls, numReplies: 0, isGang, onSettled };
    this.#order.callBegan(step);
    const keys = (role: ChannelEnd["role"]) => ends.filter((end) => end.role === role).map(keyOf);
    for (const [rank, { worker, devices }] of ranks.entries()) {
      const call = calls[rank] as string;
      this.#byCall.set(call, this.#processes.get(worker) as SimulatedProcess);
      this.#channels.open(call, worker, ends);
      if (devices.length === 0) continue;
      this.#locks.openCall({ call, worker, sequence, ends, gang });
      this.#invariants.callOpened({ call, worker, devices, sequence, gang, takes: keys("source"), puts: keys("sink") });
    }
    for (const [rank, { worker }] of ranks.entries()) {
      const call = calls[rank] as string;
      (this.#processes.get(worker) as SimulatedProcess).submit({
        call,
        method,
        step,
        stream: streamOf(step),
        ends,
        program: program(rank),
        onReply: () => this.#replied(group, call, step),
      });
    }
  }

  /** Where ranks work in step, a call ends on all of them together. */
  #replied(group: GroupCall, call: string, step: number): void {
    group.numReplies++;
    const isLast = group.numReplies === group.calls.length;
    for (const each of group.isGang ? (isLast ? group.calls : []) : [call]) {
      this.#channels.close(each);
      this.#invariants.callClosed(each);
      this.#locks.closeCall(each);
      this.#byCall.delete(each);
    }
    if (!isLast) return;
    this.#queue.after(0, () => {
      this.#order.callEnded(step);
      group.onSettled();
      this.#commitSteps();
      this.#beginSteps();
    });
  }

  /** C3, by the channels' own count: credit is overdrawn by what was let through only, and all of it returns. */
  #checkCredit(): void {
    for (const { channel, usedItems, credit } of this.#channels.snapshots()) {
      if (credit.some((each) => each.usedItems > this.#options.capacityOf(channel) + each.overdrawnItems))
        throw new Error(`C3: '${channel}' holds ${usedItems} items`);
      // What a cycle puts last nobody takes; elsewhere everything is taken.
      const isOver = this.steps.length === this.#options.steps;
      if (isOver && usedItems > 0 && !this.#options.model.hasCycles)
        throw new Error(`C3: '${channel}' has ${usedItems} items left at the end`);
    }
  }

  #standstill(): TreadleError {
    const calls = [...this.#byCall].map(([call, { worker, current }]) => ({
      call,
      method: current?.method ?? "call",
      worker,
      replied: false,
    }));
    const { text } = describeStandstill(calls, this.#channels.snapshots(), this.#locks.edges(), () => 0);
    const step = this.steps.length + 1;
    return new TreadleError(
      "problem.invalid",
      `step ${step} of the simulated run comes to a standstill: ${text.slice(0, 2000)}; check the flow graph, or raise flow.capacity`,
    );
  }
}

/** A question and its answer are two messages. */
const messageMs = ({ askSeconds = 0 }: ComponentProfile): number => (1000 * askSeconds) / 2;

const streamOf = (step: number): string => `step-${step}`;

const flowsOf = ({ takes, puts }: MethodModel): Flow[] => [...takes, ...puts];

function endsOf({ takes, puts }: MethodModel, stream: string): ChannelEnd[] {
  return [
    ...takes.map(({ channel }) => ({ channel, role: "source" as const, stream })),
    ...puts.map(({ channel }) => ({ channel, role: "sink" as const, stream })),
  ];
}
