import { join } from "node:path";
import * as contracts from "@treadle/contracts";
import {
  type ChannelRef,
  type ObservedCall,
  type Plan,
  type RunEvent,
  type RunStatus,
  TreadleError,
} from "@treadle/contracts";
import { resolvePlacement, type SwapCost } from "@treadle/planner";
import { type LinkTraffic, removeSegments } from "@treadle/transport";
import type { z } from "zod";
import type { Channel, ChannelOptions } from "../channel/channel.ts";
import { type ChannelEnd, ChannelHomes } from "../channel/channel-homes.ts";
import { runnerName } from "../channel/channel-messages.ts";
import { RunnerChannel } from "../channel/runner-channel.ts";
import { LockService } from "../device-lock/lock-service.ts";
import { createGroup, type WorkerGroup } from "../group/group.ts";
import type { CallHandle } from "../group/handle.ts";
import { mapArguments } from "../host/call-arguments.ts";
import { locateExport } from "../host/module-loader.ts";
import { SupervisorState } from "../supervisor/supervisor-state.ts";
import { type AnyWorkerClass, type ConfigOf, methodNames, type WorkerClass } from "../worker.ts";
import { adaptPlan } from "./adapt-plan.ts";
import type { ClusterOptions } from "./cluster-options.ts";
import { type Component, componentName, type LaunchOptions } from "./component.ts";
import { Fleet } from "./fleet.ts";
import { GroupCalls } from "./group-calls.ts";
import { openLocalNode } from "./local-node.ts";
import type { Nodes } from "./nodes.ts";
import { elasticOf, type PlacementFacts, type PlannedChange, placementFacts } from "./placement-facts.ts";
import { planEvent } from "./plan-event.ts";
import type { Rank } from "./rank.ts";
import { RunWatch } from "./run-watch.ts";
import { RunnerPayloads } from "./runner-payloads.ts";
import { SavedStates } from "./saved-states.ts";
import { channelWaits } from "./standstill.ts";
import { encodeArgument, locateClass } from "./workflow-references.ts";

export class Cluster {
  readonly #options: ClusterOptions;
  readonly #components = new Map<string, Component>();
  readonly #homes: ChannelHomes;
  readonly #nodes: Nodes;
  readonly #payloads: RunnerPayloads;
  readonly #locks: LockService;
  readonly #calls: GroupCalls;
  readonly #supervisor: SupervisorState;
  readonly #fleet: Fleet;
  readonly #watch: RunWatch;
  readonly #states = new SavedStates();
  readonly #stateTag = crypto.randomUUID().slice(0, 8);
  #planned: PlannedChange | undefined;
  #started: Promise<void> | undefined;
  #failure: TreadleError | undefined;
  #closing = false;
  #step: number | undefined;
  #lastStep: number | undefined;
  /** given what each call costs, while it is set; set by the run */
  observer: ((call: ObservedCall) => void) | undefined;
  #callListener: (handle: CallHandle<unknown>) => void = () => {};
  #failureListener: (error: TreadleError) => void = () => {};

  constructor(options: ClusterOptions) {
    this.#options = options;
    const { supervision } = options.config;
    this.#supervisor = new SupervisorState(supervision, performance.now());
    // S4: what a killed runner of this run and its workers left; before the workflow puts anything
    if (!options.dryRun) removeSegments(this.#runPrefix);
    const { config, projectRoot, logs } = options;
    const socketFolder = () => this.#fleet.socketFolder;
    this.#nodes = options.nodes ?? openLocalNode({ cluster: config.cluster, projectRoot, logs, socketFolder });
    this.#payloads = new RunnerPayloads({
      nodes: this.#nodes,
      fleet: () => this.#fleet,
      segmentPrefix: this.#segmentPrefix,
      onRead: (segment) => this.#homes.read(runnerName, { segments: [segment] }),
    });
    const progress = () => this.#supervisor.progress(performance.now());
    this.#homes = new ChannelHomes({
      now: () => performance.now(),
      plannedCapacity: (channel) => this.#planned?.plan.capacity?.[channel],
      onProgress: progress,
      onEnqueued: (call) => this.#locks.enqueued(call),
      onWait: (call, end, on) => this.#locks.waits(call, end, on),
      payloads: this.#payloads.ends,
      onFreed: (effect) => this.#payloads.freed(effect),
    });
    this.#locks = new LockService({
      timeoutMs: supervision.lockTimeoutMs,
      onProgress: progress,
      onload: (worker) => this.#fleet.onload(worker),
      offload: (worker) => this.#fleet.offload(worker),
      channelWaits: () => channelWaits(this.#homes.snapshots()),
    });
    this.#calls = new GroupCalls({
      homes: this.#homes,
      locks: this.#locks,
      timeoutMs: supervision.callTimeoutMs,
      groupSize: (component) => this.#fleet.ranksOf(component).length,
      // Sequences begin anew with each runner; the files that the journal of an earlier one refers to stay as they are.
      savePath: (component, sequence) => join(options.stateFolder, `${component}.${this.#stateTag}-${sequence}.state`),
      onSaved: (component, path, step) => this.#states.save(component, path, step),
      onObserved: (call) => this.observer?.(call),
      onProgress: progress,
      onFailure: (error) => this.#noteFailure(error),
    });
    this.#fleet = new Fleet({
      cluster: options,
      nodes: this.#nodes,
      segmentPrefix: this.#segmentPrefix,
      components: this.#components,
      homes: this.#homes,
      locks: this.#locks,
      calls: this.#calls,
      supervisor: this.#supervisor,
      states: this.#states,
      onCommand: (method) => this.#command(method),
      isOver: () => this.#failure !== undefined,
      onFatal: (error) => this.#fail(error),
    });
    this.#watch = new RunWatch({
      homes: this.#homes,
      locks: this.#locks,
      calls: this.#calls,
      fleet: this.#fleet,
      supervisor: this.#supervisor,
      onEvent: options.onEvent,
      onFatal: (error) => this.#fail(error),
    });
  }

  /** Called with every call that the workflow makes. */
  onCall(listener: (handle: CallHandle<unknown>) => void): void {
    this.#callListener = listener;
  }

  /** Called once, with the first failure that restarts cannot mend (S1). */
  onFailure(listener: (error: TreadleError) => void): void {
    this.#failureListener = listener;
  }

  /** the step that calls and puts belong to now; set by the run */
  get step(): number | undefined {
    return this.#step;
  }
  set step(step: number | undefined) {
    this.#step = step;
    this.#lastStep = step ?? this.#lastStep;
  }

  get plan(): Plan | undefined {
    return this.#planned?.plan;
  }
  get failure(): TreadleError | undefined {
    return this.#failure;
  }
  get restarts(): number {
    return this.#fleet.restarts;
  }
  /** The saved states of the components: file paths. */
  get states(): SavedStates {
    return this.#states;
  }
  /** Bytes over the runner's links so far. */
  get traffic(): LinkTraffic {
    return this.#fleet.traffic;
  }
  get channelDepths(): { channel: string; depth: number }[] {
    return this.#homes.names.map((channel) => ({ channel, depth: this.#homes.depth(channel) }));
  }

  /**
   * Declares a component; its processes start together with all others at the first call, because only then is it known
   * who shares the devices. The class must be exported by the workflow module, or say its `module`.
   */
  launch<W>(
    workerClass: WorkerClass<W>,
    config: NoInfer<ConfigOf<W>>,
    options: LaunchOptions = {},
  ): Promise<WorkerGroup<W>> {
    const name = options.name ?? componentName(workerClass.name);
    if (this.#started) {
      throw new TreadleError(
        "workflow.invalid",
        `component '${name}' was launched after the first call; launch every component before, so that they are placed together`,
      );
    }
    if (this.#components.has(name)) {
      throw new TreadleError(
        "workflow.invalid",
        `two components are called '${name}'; give one another name with launch(…, { name })`,
      );
    }
    const anyClass = workerClass as unknown as AnyWorkerClass; // what follows uses the common part only
    const found = locateClass(anyClass, this.#options.workflowModule);
    this.#components.set(name, {
      name,
      workerClass: anyClass,
      config,
      options,
      module: found.module,
      exportName: found.exportName,
      methods: methodNames(anyClass),
    });
    return Promise.resolve(this.#group<W>(name));
  }

  /** Defines a channel; its schema is its type. */
  channel<T>(name: string, schema: z.ZodType<T>, options: ChannelOptions<T> = {}): Channel<T> {
    const { workflowModule, config } = this.#options;
    const modules = [
      ...(workflowModule ? [workflowModule] : []),
      { url: "@treadle/contracts", exports: contracts as unknown as Record<string, unknown> },
    ];
    const located = locateExport(schema, modules);
    // S3: from the first channel on, since the workflow can wait for one before it calls anybody.
    if (!this.#options.dryRun) this.#watch.start();
    this.#homes.define({
      name,
      capacity: options.capacity ?? config.flow.capacity,
      pick: options.pick ?? "fifo",
      schema: located ? undefined : schema,
    });
    const reference = (role: "source" | "sink"): ChannelRef => ({
      $channel: name,
      role,
      granularity: this.#granularity(name),
      ...(options.key ? { key: options.key } : {}),
      ...(options.weight ? { weight: options.weight } : {}),
      ...(options.priority ? { priority: options.priority } : {}),
      ...(located ? { schema: located } : {}),
      inlineLimitBytes: config.flow.inlineLimitKiB * 1024,
    });
    return new RunnerChannel<T>(name, schema, this.#homes, reference, () => this.#stream());
  }

  /** Uses saved states, of a run that is resumed or of a checkpoint, for components that are about to start. */
  restoreStates(states: Readonly<Record<string, string>>): void {
    for (const [component, path] of Object.entries(states)) this.#states.save(component, path, undefined);
  }

  /** Decides where everything runs; starts nothing. Throws `placement.impossible` with the nearest possible one. */
  place(): Plan {
    if (this.#planned) return this.#planned.plan;
    const { config } = this.#options;
    if (this.#components.size === 0) {
      throw new TreadleError(
        "workflow.invalid",
        "the workflow launches no component; call cluster.launch before anything else",
      );
    }
    const { mode } = config.placement;
    const facts = this.placementFacts;
    this.#planned = this.#options.plan?.(facts) ?? {
      plan: resolvePlacement({ mode: mode === "auto" ? "temporal" : mode, ...facts }),
      why: [],
    };
    return this.#planned.plan;
  }

  /** What every component is to `profiles`: all that its times depend on. */
  get components(): readonly Component[] {
    return [...this.#components.values()];
  }

  /** What a plan is made of. */
  get placementFacts(): PlacementFacts {
    const devices = this.#nodes.devices();
    return placementFacts(this.components, this.#options.config, devices, this.#nodes.labelled(devices));
  }

  /**
   * Goes over to another plan, while no call is open; false, and nothing has changed, when one is. Ranks whose devices
   * change end in order and start again from their component's saved state.
   */
  async adopt(planned: PlannedChange): Promise<boolean> {
    if (this.#calls.open.length > 0) return false;
    this.#planned = planned;
    if (!this.#started) return true;
    this.#fleet.addDevices(this.#nodes.devices());
    this.#emit(planEvent(planned));
    await this.#fleet.adopt(planned.plan);
    return true;
  }

  /** Grows whenever a node comes, goes, or begins to drain. */
  get nodesRevision(): number {
    return this.#nodes.revision;
  }

  /** Some component's number of ranks follows the nodes. */
  get isElastic(): boolean {
    return elasticOf(this.components, this.#options.config).size > 0;
  }

  /** The plan as the nodes that are there now want it; undefined when that is the present one. */
  adapt(): PlannedChange | undefined {
    const current = this.#planned?.plan;
    if (!current || !this.#started) return undefined;
    const components = Object.fromEntries(
      Object.keys(current.components).map((name) => [
        name,
        { ranks: this.#fleet.ranksOf(name).map(({ node, devices }) => ({ node, devices: [...devices] })) },
      ]),
    );
    const facts = this.placementFacts;
    const elastic = elasticOf(this.components, this.#options.config);
    return adaptPlan({ current: { ...current, components }, facts, elastic });
  }

  /** Places and starts everything that was launched; calls do it by themselves. */
  start(): Promise<void> {
    if (!this.#started) {
      const plan = this.place();
      this.#fleet.addDevices(this.#nodes.devices());
      this.#fleet.layOut(plan);
      this.#emit(planEvent(this.#planned as PlannedChange));
      this.#watch.start();
      this.#started = this.#fleet.start();
      this.#started.catch((error) => this.#fail(error));
    }
    return this.#started;
  }

  /** What it takes to free and to load each component that is loaded now; while no call is open. */
  async measureSwaps(): Promise<Map<string, SwapCost>> {
    const costs = new Map<string, SwapCost>();
    if (this.#calls.open.length > 0) return costs;
    const loaded = new Map(this.#locks.snapshot().workers.map(({ worker, residency }) => [worker, residency]));
    for (const name of this.#components.keys()) {
      const worker = `${name}/0`;
      if (loaded.get(worker) === "loaded") costs.set(name, await this.#fleet.measureSwap(worker));
    }
    return costs;
  }

  /** Fails everything that is under way. */
  abort(error: unknown): void {
    this.#fail(error);
  }

  async close(): Promise<void> {
    if (this.#closing) return;
    this.#closing = true;
    this.#watch.stop();
    const ended = new TreadleError("run.stopped", "the run has ended");
    await this.#fleet.close(!this.#failure, this.#started);
    this.#calls.fail(ended);
    this.#homes.fail(ended);
    this.#locks.fail(ended);
    this.#payloads.close();
    removeSegments(this.#segmentPrefix);
  }

  /** What anybody on the control plane may ask of this run. */
  #command(method: string): unknown {
    if (method === "status") return this.status();
    if (method !== "stop") {
      throw new TreadleError("call.unknown-method", `run '${this.#options.runId}' knows no command '${method}'`);
    }
    this.#options.onStopAsked?.();
    return undefined;
  }

  status(): RunStatus {
    return {
      ...(this.#lastStep === undefined ? {} : { step: this.#lastStep }),
      restarts: this.restarts,
      workers: this.#fleet.all.map(({ name, node, devices, process, peer, route }) => ({
        worker: name,
        node,
        devices: [...devices],
        ...(process?.pid === undefined ? {} : { pid: process.pid }),
        isReady: peer !== undefined,
        ...(route === undefined ? {} : { route }),
      })),
      channels: this.channelDepths,
      waits: this.#watch.standstill().waits.map(({ who, on }) => ({ who, on })),
    };
  }

  /** S1: the first failure is kept. */
  #noteFailure(error: unknown): void {
    if (this.#failure || this.#closing) return;
    const failure =
      error instanceof TreadleError ? error : new TreadleError("call.failed", String(error), { cause: error });
    if (failure.disposition === "cancelled") return;
    this.#failure = failure;
    this.#failureListener(failure);
  }

  #fail(error: unknown): void {
    this.#noteFailure(error);
    for (const rank of this.#fleet.all) rank.fail(error);
    this.#calls.fail(error);
  }

  #group<W>(name: string): WorkerGroup<W> {
    const component = this.#components.get(name) as Component;
    // The number of ranks is the plan's, so asking for it places the components.
    const cluster = this;
    const description = {
      name,
      methods: component.methods,
      get size(): number {
        return cluster.place().components[name]?.ranks.length as number;
      },
    };
    return createGroup<W>(description, (ranks, method, args) => this.#call(component, ranks, method, args));
  }

  #call(
    component: Component,
    ranks: readonly number[] | undefined,
    method: string,
    args: readonly unknown[],
  ): CallHandle<unknown> {
    if (this.#options.dryRun) {
      this.place();
      this.#options.dryRun();
    }
    if (this.#closing)
      throw new TreadleError("run.stopped", `'${component.name}.${method}' was called after the run ended`);
    this.start().catch(() => {});
    const ends: ChannelEnd[] = [];
    const encodedArgs = args.map((arg) => mapArguments(arg, (value) => encodeArgument(value, this.#stream(), ends)));
    const all = this.#fleet.ranksOf(component.name);
    const chosen = ranks ? ranks.map((index) => all[index] as Rank) : all;
    const handle = this.#calls.call({
      component,
      ranks: chosen,
      method,
      args: encodedArgs,
      ends,
      step: this.step,
      observe: this.observer !== undefined,
    });
    this.#callListener(handle);
    return handle;
  }

  /** Puts and takes of one step belong together; outside of steps they are in one stream that reopens. */
  #stream(): string {
    return this.step === undefined ? "outside" : `step-${this.step}`;
  }

  #granularity(channel: string): number | "all" {
    const { granularity } = this.place();
    return granularity.channels[channel] ?? granularity.default;
  }

  /** What the names of all shared memory of the run begin with. */
  get #runPrefix(): string {
    return `treadle-${this.#options.runId.replace(/[^A-Za-z0-9_.-]/g, "_")}-`;
  }

  /** What is this runner's: one that was suspended while another took the run must not clean up after that one. */
  get #segmentPrefix(): string {
    return `${this.#runPrefix}${this.#stateTag}-`;
  }

  #emit(event: RunEvent): void {
    this.#options.onEvent(event);
  }
}
