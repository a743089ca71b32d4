/**
 * A run on virtual time: the workflow's steps over simulated processes, channels and locks.
 *
 * Each step, as a workflow does it: calls that use no channel, which it waits for; then the batch is put and every other
 * method is called, in the order of the graph, without waiting. Step order and staleness are those of the runtime (W2).
 */
import { type ComponentProfile, TreadleError, type WorkerMemory } from "@treadle/contracts";
import { type ChannelEnd, type LeaseEffect, type LeaseInput, runnerName } from "@treadle/core";
import type { Flow } from "@treadle/planner";
import type { BatchTimes } from "./durations.ts";
import { EventQueue, OwnEvents, type Timeline } from "./event-queue.ts";
import { Invariants } from "./invariants.ts";
import { CallProgress, emptyingProgram, methodProgram, type RankProgram, serialProgram } from "./rank-program.ts";
import { Recorder } from "./recorder.ts";
import { type Computed, type ProcessCall, type ProcessWorld, SimulatedProcess } from "./simulated-process.ts";
import { VirtualRunner } from "./virtual-runner.ts";
import type { ComponentModel, MethodModel, WorkflowModel } from "./workflow-model.ts";

export type SimulatedRunOptions = {
  readonly model: WorkflowModel;
  readonly durations: BatchTimes;
  readonly steps: number;
  readonly maxStaleness: number;
  /** items that a channel holds before a put waits */
  readonly capacityOf: (channel: string) => number;
  /** bytes by device */
  readonly memory: ReadonlyMap<string, number>;
  /** of a component's ranks on each of their devices */
  readonly memoryOf: (component: ComponentModel) => WorkerMemory;
  readonly keepsSpans: boolean;
  /** of a run beside others: the time of all, and the pool that has the devices */
  readonly shared?: SharedWorld | undefined;
};

export type SharedWorld = {
  readonly time: Timeline;
  readonly onLease: (effect: LeaseEffect) => void;
  /** a rank of a component has computed on devices */
  readonly onWorked?: ((component: string, devices: readonly string[], done: Computed) => void) | undefined;
  /** a step has been committed, and the next one has not begun */
  readonly onCommit: (step: number) => void;
  /** all steps have been committed */
  readonly onDone: () => void;
};

export type SimulatedStep = {
  readonly step: number;
  readonly startMs: number;
  readonly endMs: number;
  readonly seconds: number;
};

export class SimulatedRun {
  readonly recorder: Recorder;
  readonly steps: SimulatedStep[] = [];
  readonly #options: SimulatedRunOptions;
  readonly #own = new EventQueue();
  readonly #queue: OwnEvents;
  readonly #runner: VirtualRunner;
  readonly #processes = new Map<string, SimulatedProcess>();
  /** calls that have not been sent to their processes */
  readonly #unsent = new Map<string, ProcessCall>();
  readonly #starts = new Map<number, number>();
  #nextStep = 1;
  #isInBody = false;

  constructor(options: SimulatedRunOptions) {
    const { model, capacityOf, memory, maxStaleness, keepsSpans } = options;
    this.#options = options;
    this.#queue = new OwnEvents(options.shared?.time ?? this.#own);
    this.recorder = new Recorder(keepsSpans);
    // Whoever waits for credit lets its consumers before it, so L2 is strict only where nobody does.
    const flows = model.components.flatMap(({ methods }) => methods.flatMap(flowsOf));
    const isRoomy = flows.every(({ channel, items }) => items <= capacityOf(channel));
    const devicesOf = new Map(
      model.components.flatMap(({ ranks }) => ranks).map(({ worker, devices }) => [worker, devices] as const),
    );
    this.#runner = new VirtualRunner({
      queue: this.#queue,
      components: model.components,
      channels: model.channels,
      maxStaleness,
      capacityOf,
      memory,
      memoryOf: options.memoryOf,
      invariants: new Invariants({ memory, isOrderPlain: model.isOrderPlain && isRoomy }),
      onSend: (call, worker) => this.#send(call, worker),
      onSwap: (worker, category, startMs) => {
        const devices = devicesOf.get(worker);
        this.recorder.record(worker, { name: category, category, startMs, endMs: this.#queue.nowMs, devices });
      },
      onCommit: (step, seconds) => this.#committed(step, seconds),
      onLease: options.shared?.onLease,
    });
    const onWorked: ProcessWorld["onWorked"] = (worker, devices, done) =>
      options.shared?.onWorked?.(componentOf(worker), devices, done);
    const world = { queue: this.#queue, runner: this.#runner, recorder: this.recorder, onWorked };
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
    this.begin();
    while (this.#own.runNext());
    this.expectDone();
  }

  // Beside others.

  begin(): void {
    this.#beginSteps();
  }

  lease(input: LeaseInput): void {
    this.#runner.feed(input);
  }

  /** What computes on these devices takes so many times as long, by its component. */
  slow(devices: readonly string[], paceOf: (component: string) => number): void {
    for (const process of this.#processes.values())
      if (process.devices.some((device) => devices.includes(device))) process.slow(paceOf(componentOf(process.worker)));
  }

  /** Its processes are gone: nothing of it happens any more. */
  kill(): void {
    this.#queue.end();
  }

  /** Once time has ended. */
  expectDone(): void {
    if (this.steps.length < this.#options.steps) throw this.#standstill();
    this.#checkCredit();
  }

  // Steps.

  #beginSteps(): void {
    while (!this.#isInBody && this.#nextStep <= this.#options.steps) {
      if (this.#runner.state.blockerOf(this.#nextStep) !== undefined) return; // W2
      const step = this.#nextStep++;
      this.#isInBody = true;
      this.#starts.set(step, this.#queue.nowMs);
      this.#runner.feed({ type: "begin-step", step });
      this.#queue.after(this.#options.model.overheadMs, () => this.#callSerial(step, () => this.#putInputs(step, 0)));
    }
  }

  #callSerial(step: number, then: () => void): void {
    const serial = this.#options.model.components.filter((component) => component.serialMs > 0);
    let left = serial.length;
    if (left === 0) then();
    for (const component of serial) {
      this.#callRanks(
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
  #putInputs(step: number, at: number): void {
    const input = this.#options.model.inputs[at];
    if (!input) {
      this.#callMethods(step);
      return;
    }
    const { channel, items } = input;
    const next = () => this.#queue.after(0, () => this.#putInputs(step, at + 1));
    if (items === 0) {
      next();
      return;
    }
    const call = `${runnerName}:${channel}:${step}`;
    this.#runner.openOwn(call, { channel, role: "sink", stream: streamOf(step) });
    this.#runner.put(call, channel, items, () => {
      this.#runner.closeOwn(call);
      next();
    });
  }

  #callMethods(step: number): void {
    const { model, durations } = this.#options;
    for (const component of model.components) {
      for (const method of component.methods) {
        const progress = new CallProgress();
        const program = (rank: number) => methodProgram({ model, durations, component, method, rank, step, progress });
        this.#callRanks(component, method.name, step, endsOf(method, streamOf(step)), program);
      }
    }
    for (const channel of model.outputs) this.#empty(channel, step);
    this.#isInBody = false;
    this.#runner.feed({ type: "end-body", step });
    this.#beginSteps();
  }

  #callRanks(
    component: ComponentModel,
    method: string,
    step: number,
    ends: readonly ChannelEnd[],
    program: (rank: number) => RankProgram,
    onSettled: () => void = () => {},
  ): void {
    const calls = this.#runner.call(component, method, step, ends, () => {
      this.#runner.feed({ type: "end-work", step });
      onSettled();
      this.#beginSteps();
    });
    for (const [rank, call] of calls.entries()) {
      const onReply = () => this.#runner.returned(call);
      this.#unsent.set(call, { call, method, step, program: program(rank), onReply });
    }
  }

  #send(call: string, worker: string): void {
    const unsent = this.#unsent.get(call) as ProcessCall;
    this.#unsent.delete(call);
    (this.#processes.get(worker) as SimulatedProcess).submit(unsent);
  }

  /** The runner takes what nobody else does. */
  #empty(channel: string, step: number): void {
    const call = `${runnerName}:${channel}:${step}`;
    this.#runner.openOwn(call, { channel, role: "source", stream: streamOf(step) });
    this.#runner.feed({ type: "begin-work", step });
    const onReply = () => {
      this.#runner.closeOwn(call);
      this.#queue.after(0, () => {
        this.#runner.feed({ type: "end-work", step });
        this.#beginSteps();
      });
    };
    const program = emptyingProgram(channel);
    (this.#processes.get(runnerName) as SimulatedProcess).submit({ call, method: channel, step, program, onReply });
  }

  #committed(step: number, seconds: number): void {
    const startMs = this.#starts.get(step) as number;
    const endMs = this.#queue.nowMs;
    this.steps.push({ step, startMs, endMs, seconds });
    this.recorder.record(runnerName, { name: `step ${step}`, category: "step", startMs, endMs, step });
    this.#checkCredit();
    this.#options.shared?.onCommit(step);
    if (this.steps.length === this.#options.steps) this.#options.shared?.onDone();
  }

  /** C3, by the channels' own count: credit is overdrawn by what was let through only, and all of it returns. */
  #checkCredit(): void {
    for (const { channel, usedItems, credit } of this.#runner.state.channelSnapshots()) {
      if (credit.some((each) => each.usedItems > this.#options.capacityOf(channel) + each.overdrawnItems))
        throw new Error(`C3: '${channel}' holds ${usedItems} items`);
      // What a cycle puts last nobody takes; elsewhere everything is taken.
      const isOver = this.steps.length === this.#options.steps;
      if (isOver && usedItems > 0 && !this.#options.model.hasCycles)
        throw new Error(`C3: '${channel}' has ${usedItems} items left at the end`);
    }
  }

  #standstill(): TreadleError {
    const { text } = this.#runner.state.standstill();
    const step = this.steps.length + 1;
    return new TreadleError(
      "problem.invalid",
      `step ${step} of the simulated run comes to a standstill: ${text.slice(0, 2000)}; check the flow graph, or raise flow.capacity`,
    );
  }
}

/** A question and its answer are two messages. */
const messageMs = ({ askSeconds = 0 }: ComponentProfile): number => (1000 * askSeconds) / 2;

const componentOf = (worker: string): string => worker.slice(0, worker.lastIndexOf("/"));

const streamOf = (step: number): string => `step-${step}`;

const flowsOf = ({ takes, puts }: MethodModel): Flow[] => [...takes, ...puts];

function endsOf({ takes, puts }: MethodModel, stream: string): ChannelEnd[] {
  return [
    ...takes.map(({ channel }) => ({ channel, role: "source" as const, stream })),
    ...puts.map(({ channel }) => ({ channel, role: "sink" as const, stream })),
  ];
}
