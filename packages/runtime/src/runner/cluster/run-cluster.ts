import { join } from "node:path";
import {
  type ChannelRef,
  type DeviceSpec,
  type Plan,
  type ReadRunFile,
  type RunFilePart,
  type RunStatus,
  runPrefix,
  type StateManifest,
  savingMethod,
  TreadleError,
} from "@treadle/contracts";
import { type ChannelEnd, type ComponentTraits, runnerName, SavePace, streamOf } from "@treadle/core";
import { freeDevices, resolvePlacement, type SwapCost, withWishes } from "@treadle/planner";
import { type LinkTraffic, removeSegments } from "@treadle/transport";
import type { z } from "zod";
import type { Channel, ChannelOptions } from "../../author/channel/channel.ts";
import type { Cluster, LaunchOptions } from "../../author/cluster.ts";
import { mapArguments } from "../../author/group/call-arguments.ts";
import { createGroup, describeGroup, type WorkerGroup } from "../../author/group/group.ts";
import type { CallHandle } from "../../author/group/handle.ts";
import { completeState } from "../../author/state/saved-state.ts";
import { type AnyWorkerClass, type ConfigOf, methodNames, type WorkerClass } from "../../author/worker.ts";
import { RunnerSockets } from "../../node/socket-folder.ts";
import { RecordingWriter } from "../loop/recording.ts";
import { RunnerLoop } from "../loop/runner-loop.ts";
import { openLocalNode } from "../nodes/local-node.ts";
import type { Nodes } from "../nodes/nodes.ts";
import { adaptPlan } from "../placement/adapt-plan.ts";
import { type Component, checkedName, checkOptions, checkSaving, componentName } from "../placement/component.ts";
import { joinPlan } from "../placement/join-plan.ts";
import { elasticOf, type PlacementFacts, type PlannedChange, placementFacts } from "../placement/placement-facts.ts";
import { planEvent } from "../placement/plan-event.ts";
import { workOf } from "../placement/profile-store.ts";
import { SizedRanks } from "../placement/sized-ranks.ts";
import { withoutVainBounds } from "../placement/vain-bounds.ts";
import { CallDesk } from "./call-desk.ts";
import { ChannelDesk } from "./channel-desk.ts";
import { type ClusterOptions, machineOptions } from "./cluster-options.ts";
import { Fleet, type ServeWorker } from "./fleet.ts";
import { PredictorFolder } from "./predictor-folder.ts";
import { RunnerChannel } from "./runner-channel.ts";
import { RunnerLinks } from "./runner-links.ts";
import { RunnerPayloads } from "./runner-payloads.ts";
import { userPolicy } from "./user-policy.ts";
import { serveWorker } from "./worker-service.ts";
import { encodeArgument, locateClass, locateSchema } from "./workflow-references.ts";

/**
 * The processes, channels and devices of one run, as its workflow uses them.
 *
 * - S4 the end is clean after any failure: no process, file, lock or subject of the run is left anywhere.
 */
export class RunCluster implements Cluster {
  /** what decides about this run; steps and reports use it, too */
  readonly loop: RunnerLoop;
  /** groups whose classes decide how many devices each of their ranks spans */
  readonly sized: SizedRanks;
  readonly #options: ClusterOptions;
  readonly #components = new Map<string, Component>();
  readonly #nodes: Nodes;
  readonly #fleet: Fleet;
  readonly #payloads: RunnerPayloads;
  readonly #desk: ChannelDesk;
  readonly #calls: CallDesk;
  readonly #stateTag = crypto.randomUUID().slice(0, 8);
  readonly #recording: RecordingWriter | undefined;
  readonly #warn: (line: string) => void;
  #planned: PlannedChange | undefined;
  #placedOn: PlacementFacts["devices"] = [];
  readonly #devices = new Map<string, DeviceSpec>();
  #started: Promise<void> | undefined;
  /** those that wait for the change of plan */
  readonly #adopting: (() => void)[] = [];
  #closing = false;
  #step: number | undefined;
  #lastStep: number | undefined;
  #callListener: (handle: CallHandle<unknown>) => void = () => {};
  #failureListener: (error: TreadleError) => void = () => {};

  constructor(options: ClusterOptions) {
    this.#options = options;
    const { config, projectRoot, logs, onEvent, runId, runFolder } = options;
    const { supervision, cluster, observe, placement } = config;
    // S4: what a killed runner of this run and its workers left; before the workflow puts anything
    if (!options.dryRun) removeSegments(this.#runPrefix);
    const log = (level: "info" | "warn") => (line: string) =>
      onEvent({ type: "log", atMs: Date.now(), worker: "runner", line, level });
    const warn = log("warn");
    this.#warn = warn;
    const mode = placement.mode === "auto" ? "temporal" : placement.mode;
    this.sized = new SizedRanks({ mode, totalSteps: config.steps, tell: log("info") });
    const machine = machineOptions(options);
    const startMs = performance.now();
    const header = { runId, startMs, options: machine };
    this.#recording =
      observe.record && !options.dryRun
        ? new RecordingWriter({ folder: runFolder, maxMiB: observe.recordMaxMiB, header, warn })
        : undefined;
    const loop = new RunnerLoop(machine, { startMs, recorder: this.#recording });
    this.loop = loop;
    const sockets = new RunnerSockets();
    const nodes =
      options.nodes ?? openLocalNode({ cluster, projectRoot, logs, sockets, memoryMiB: options.pool?.memoryMiB });
    this.#nodes = nodes;
    options.pool?.serve(loop, (name) => workOf(this.#components, name, this.#places(), projectRoot));
    const links = new RunnerLinks({ cluster: options, nodes, sockets, segmentPrefix: this.#segmentPrefix, warn });
    const fleet = new Fleet({
      ...{ cluster: options, nodes, links, loop, components: this.#components },
      places: () => this.#places(),
    });
    this.#fleet = fleet;
    const onRead = (segment: string) => loop.feed({ type: "read", worker: runnerName, segments: [segment] });
    const payloads = new RunnerPayloads({ nodes, fleet, links, onRead });
    this.#payloads = payloads;
    this.#desk = new ChannelDesk({ loop, payloads: payloads.ends, onFreed: (effect) => payloads.freed(effect) });
    this.#calls = new CallDesk({
      loop,
      timeoutMs: supervision.callTimeoutMs,
      peerOf: (worker) => fleet.peerOf(worker),
      // Sequences begin anew with each runner; the files that the journal of an earlier one refers to stay as they are.
      stateFolder: (component, sequence) => join(options.stateFolder, `${component}.${this.#stateTag}-${sequence}`),
      completeState: async (path, component, ranks) => {
        const manifest: StateManifest = { format: 1, component, ranks: [...ranks] };
        await completeState(path, manifest);
        options.onState?.(path, manifest);
      },
      pace: machine.runsAhead
        ? new SavePace({
            everySteps: config.checkpoints.stateEverySteps,
            committed: options.committed ?? 0,
            lastStep: config.steps,
          })
        : undefined,
      onObserved: (call) => options.placer?.observer?.(call),
    });
    loop.on("adopted", () => {
      for (const resolve of this.#adopting.splice(0)) resolve();
    });
    loop.on("waiting", ({ who, on, seconds }) => onEvent({ type: "waiting", atMs: Date.now(), who, on, seconds }));
    loop.on("notice", ({ text }) => warn(text));
    loop.on("failed", ({ error }) => {
      if (this.#closing) return;
      // Calls that are open still learn their own reasons, such as that their producer failed (C4).
      if (!loop.state.hasOpenCalls) fleet.fail(error);
      this.#failureListener(error); // S1
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

  get failure(): TreadleError | undefined {
    return this.loop.state.failure;
  }
  get restarts(): number {
    return this.loop.state.restarts;
  }
  /** The folder of the newest saved state of each component. */
  get newestStates(): Readonly<Record<string, string>> {
    return this.loop.state.newestStates;
  }
  /** Bytes over the runner's links so far. */
  get traffic(): LinkTraffic {
    return this.#fleet.traffic;
  }
  get channelDepths(): { channel: string; depth: number }[] {
    return this.loop.state.channels;
  }

  launch<W>(workerClass: WorkerClass<W>, config: NoInfer<ConfigOf<W>>, options: LaunchOptions = {}): WorkerGroup<W> {
    const name = checkedName(options.name) ?? componentName(workerClass.name);
    if (this.#components.has(name)) {
      throw new TreadleError(
        "workflow.invalid",
        `two components are called '${name}'; give one another name with launch(…, { name })`,
      );
    }
    const anyClass = workerClass as unknown as AnyWorkerClass; // what follows uses the common part only
    checkSaving(name, anyClass);
    anyClass.checkConfig(config);
    checkOptions(name, options, anyClass.degrees(config));
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
    const { restart, resizes, replays } = anyClass;
    const traits = { restart, resizes, replays, ...this.#apartFrom(name) };
    if (this.#started) this.#join(name, traits);
    else this.loop.feed({ type: "add-component", component: name, ...traits });
    return this.#group<W>(name);
  }

  async end(group: WorkerGroup<unknown>): Promise<void> {
    const name = describeGroup(group)?.name ?? "";
    const current = this.#currentPlan();
    if (!current?.components[name] || !this.#components.has(name)) {
      const known = [...this.#components.keys()].join(", ") || "none";
      throw new TreadleError(
        "workflow.invalid",
        `'${name}' cannot be ended: no group of that name runs; this run has ${known}`,
      );
    }
    if (this.loop.state.hasOpenCalls)
      throw new TreadleError("workflow.invalid", `'${name}' cannot be ended while a call is open; await it first`);
    await this.saveStates(); // steps that have ended wait for what it has changed
    const components = Object.fromEntries(Object.entries(current.components).filter(([each]) => each !== name));
    const sharing = current.sharing.map((each) => ({
      ...each,
      components: each.components.filter((component) => component !== name),
    }));
    const plan = { ...current, components, sharing: sharing.filter((each) => each.components.length > 1) };
    this.#components.delete(name);
    this.sized.ended(name);
    await this.adopt({ plan, why: [`'${name}' has ended`] });
  }

  channel<T>(name: string, schema: z.ZodType<T>, options: ChannelOptions<T> = {}): Channel<T> {
    const { workflowModule, config } = this.#options;
    const located = locateSchema(name, schema, workflowModule);
    // S3: from the first channel on, since the workflow can wait for one before it calls anybody.
    if (!this.#options.dryRun) this.loop.start();
    this.#desk.define({
      name,
      capacity: options.capacity ?? config.flow.capacity,
      pick:
        typeof options.pick === "function"
          ? userPolicy(name, options.pick, workflowModule, this.#warn)
          : (options.pick ?? "fifo"),
    });
    const reference = (role: "source" | "sink"): ChannelRef => ({
      $channel: name,
      role,
      granularity: this.#granularity(name),
      ...(options.key ? { key: options.key } : {}),
      ...(options.weight ? { weight: options.weight } : {}),
      ...(options.priority ? { priority: options.priority } : {}),
      schema: located,
      inlineLimitBytes: config.flow.inlineLimitKiB * 1024,
    });
    return new RunnerChannel<T>(name, schema, this.#desk, reference, () => this.#stream());
  }

  /** Resolves when every change is in a saved state, as far as calls have ended. */
  async saveStates(): Promise<void> {
    await this.#calls.written();
    const handles = this.loop.state.unsaved.map((name) => {
      const component = this.#components.get(name) as Component;
      const ranks = this.loop.state.ranksOf(name).map(({ index }) => index);
      return this.#calls.call({ component, ranks, method: savingMethod, args: [], ends: [], step: undefined });
    });
    await Promise.all(handles);
    await this.#calls.written();
  }

  /** Uses saved states, of a run that is resumed or of a checkpoint, for components that are about to start. */
  restoreStates(states: Readonly<Record<string, string>>): void {
    this.loop.feed({ type: "restore", states });
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
    const placeOn = (devices: readonly DeviceSpec[]): Plan => {
      const facts = this.#factsOn(devices);
      const planned = this.#options.placer?.plan(facts, this.components) ?? {
        plan: resolvePlacement({ mode: mode === "auto" ? "temporal" : mode, ...facts }),
        why: [],
      };
      this.#placedOn = withWishes(facts).devices;
      return this.#plan(planned).plan;
    };
    const [present, before] = this.#nodes.devicesToPlaceOn();
    try {
      return placeOn(present);
    } catch (error) {
      if (before === undefined) throw error;
      return placeOn(before); // a whole group of nodes may have gone
    }
  }

  /** What every component is to `profiles`: all that its times depend on. */
  get components(): readonly Component[] {
    return [...this.#components.values()];
  }

  /** What a plan is made of. */
  get placementFacts(): PlacementFacts {
    return this.#factsOn(this.#nodes.devicesToPlaceOn()[0]);
  }

  #factsOn(devices: readonly DeviceSpec[]): PlacementFacts {
    const numbered = this.#numbered(devices);
    const { config } = this.#options;
    return placementFacts(this.components, this.sized, config, devices, this.#nodes.labelled(numbered), numbered);
  }

  /** All devices that there have been, in the order in which they came. */
  #numbered(others: readonly DeviceSpec[] = []): DeviceSpec[] {
    const [present, before = present] = this.#nodes.devicesToPlaceOn();
    for (const device of [...before, ...present, ...others]) this.#devices.set(device.id, device);
    return [...this.#devices.values()];
  }

  /** Where ranks whose node has gone may find a new place: on no device that must stay free. */
  #places(): readonly DeviceSpec[] {
    const places = this.#nodes.places();
    const { wishes } = this.#options.config.placement;
    if (wishes.freeDevices === undefined) return places;
    const free = freeDevices(this.#factsOn(places));
    return places.filter(({ id }) => !free.has(id));
  }

  /**
   * Goes over to another plan, while no call is open; false, and nothing has changed, when one is. Ranks whose devices
   * change end in order and start again from their component's saved state.
   */
  async adopt(planned: PlannedChange): Promise<boolean> {
    if (this.loop.state.hasOpenCalls) return false;
    const carriedOut = this.#plan(planned);
    if (!this.#started) return true;
    this.#options.onEvent(planEvent(carriedOut));
    const adopted = new Promise<void>((resolve) => this.#adopting.push(resolve));
    this.loop.feed({ type: "adopt", components: carriedOut.plan.components });
    await adopted;
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
    const current = this.#currentPlan();
    if (!current) return undefined;
    const elastic = elasticOf(this.components, this.#options.config);
    return adaptPlan({ current, facts: this.#factsOn(this.#nodes.devices()), elastic });
  }

  /** With the places that ranks have gone to since; undefined before the start. */
  #currentPlan(): Plan | undefined {
    const plan = this.#planned?.plan;
    if (!plan || !this.#started) return undefined;
    const components = Object.fromEntries(
      Object.keys(plan.components).map((name) => [
        name,
        { ranks: this.loop.state.ranksOf(name).map(({ place }) => ({ ...place, devices: [...place.devices] })) },
      ]),
    );
    return { ...plan, components };
  }

  /** A component that was launched after the start gets its place beside the others, as it would take turns with them. */
  #join(name: string, traits: Omit<ComponentTraits, "component">): void {
    const current = this.#currentPlan() as Plan;
    try {
      const plan = joinPlan({ current, facts: this.placementFacts, name });
      const own = plan.components[name] as Plan["components"][string];
      this.#planned = { plan, why: [`'${name}' has joined`] };
      this.loop.feed({ type: "add-component", component: name, ...traits });
      this.loop.feed({ type: "lay-out", components: { [name]: own } });
      this.#options.onEvent(planEvent(this.#planned));
    } catch (error) {
      this.#components.delete(name);
      throw error;
    }
  }

  #apartFrom(name: string): Pick<ComponentTraits, "apart"> {
    const groups = this.#options.config.placement.wishes.apart?.filter((group) => group.includes(name)) ?? [];
    return groups.length > 0 ? { apart: groups.flat().filter((other) => other !== name) } : {};
  }

  /** Places and starts everything that was launched; calls do it by themselves. */
  start(): Promise<void> {
    if (!this.#started) {
      const plan = this.place();
      this.#options.onEvent(planEvent(this.#planned as PlannedChange));
      this.loop.start();
      // Calls have somewhere to wait from here on; nodes are there once the run is announced to them.
      // Some that were there when it was placed may be gone by now: what is placed on them moves.
      const places = new Map([...this.#placedOn, ...this.#places()].map((device) => [device.id, device]));
      this.loop.feed({ type: "nodes", present: [], places: [...places.values()] });
      this.loop.feed({ type: "lay-out", components: plan.components });
      this.#started = this.#open();
      this.#started.catch((error) => this.abort(error));
    }
    return this.#started;
  }

  /** What it takes to free and to load each component that is loaded now; while no call is open. */
  async measureSwaps(): Promise<Map<string, SwapCost>> {
    const costs = new Map<string, SwapCost>();
    if (this.loop.state.hasOpenCalls) return costs;
    const loaded = new Map(this.loop.state.lockSnapshot().workers.map(({ worker, residency }) => [worker, residency]));
    for (const name of this.#components.keys()) {
      const worker = `${name}/0`;
      if (loaded.get(worker) === "loaded") costs.set(name, await this.#fleet.measureSwap(worker));
    }
    return costs;
  }

  /** Fails everything that is under way. */
  abort(error: unknown): void {
    this.loop.feed({ type: "fail", error });
  }

  async close(): Promise<void> {
    if (this.#closing) return;
    this.#closing = true;
    this.loop.stop();
    // From here on exits do not count.
    this.loop.feed({ type: "end", error: new TreadleError("run.stopped", "the run has ended") });
    await this.#fleet.close(!this.failure, this.#started);
    this.#options.pool?.leave(this.loop);
    await this.#calls.close();
    this.#payloads.close();
    removeSegments(this.#segmentPrefix);
    await this.#recording?.close();
  }

  /** How the run goes. */
  status(): RunStatus {
    return {
      ...(this.#lastStep === undefined ? {} : { step: this.#lastStep }),
      restarts: this.restarts,
      workers: this.loop.state.ranks.map(({ worker, place, phase }) => {
        const { pid, route } = this.#fleet.end(worker);
        return {
          worker,
          node: place.node,
          devices: [...place.devices],
          ...(pid === undefined ? {} : { pid }),
          isReady: phase === "ready",
          ...(route === undefined ? {} : { route }),
        };
      }),
      channels: this.channelDepths,
      waits: this.loop.state.standstill().waits.map(({ who, on }) => ({ who, on })),
    };
  }

  /** Everything that a worker may ask of the runner; the run is announced, and its processes start. */
  async #open(): Promise<void> {
    const { stateFolder, onSpans, predictorFolder } = this.#options;
    const predictors = new PredictorFolder(predictorFolder);
    const serve: ServeWorker = (peer, of, component) => {
      const node = this.#fleet.nodeOf(of.worker) as string;
      serveWorker(peer, {
        of,
        component,
        desk: this.#desk,
        loop: this.loop,
        stateFolder,
        artifacts: this.#fleet.artifacts,
        newestState: () => this.loop.state.newestState(component.name),
        predictors,
        sized: this.sized,
        onSpans,
        onSaved: (from, message) => this.#calls.saved(from, message),
        resolve: (worker, ready) => this.#fleet.resolve(worker, node, ready),
        nodeOf: (worker) => this.#fleet.nodeOf(worker),
        depots: (channel) => this.#fleet.depots(channel, node),
        pool: this.#options.pool,
      });
    };
    await this.#fleet.open(serve, {
      onStatus: () => this.status(),
      onRead: async (asked) => this.#options.shown?.read(asked) ?? nothingMore(asked),
      onLeave: async () => this.#options.shown?.areRead(),
      onStop: () => this.#options.onStopAsked?.(),
    });
    await this.#fleet.ready();
  }

  /** What is carried out of it. */
  #plan(wanted: PlannedChange): PlannedChange {
    const planned = withoutVainBounds(wanted, (name) => {
      const component = this.#components.get(name);
      const numRanks = wanted.plan.components[name]?.ranks.length ?? 0;
      return component?.workerClass.keepsDevices(component.config, numRanks) === true;
    });
    this.#planned = planned;
    this.loop.feed({ type: "limit-channels", capacity: planned.plan.capacity ?? {} });
    return planned;
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
    if (this.#components.get(component.name) !== component) {
      throw new TreadleError("workflow.invalid", `'${component.name}.${method}' was called after the group had ended`);
    }
    if (this.#options.dryRun) {
      this.place();
      this.#options.dryRun();
    }
    if (this.#closing)
      throw new TreadleError("run.stopped", `'${component.name}.${method}' was called after the run ended`);
    const { saves, savesOn } = component.workerClass;
    if (ranks !== undefined && savesOn === "every-rank" && saves.includes(method)) {
      throw new TreadleError(
        "workflow.invalid",
        `'${component.name}.${method}' was called on some ranks, and every rank saves its part of the state after it (savesOn); call it on the whole group`,
      );
    }
    this.start().catch(() => {});
    const ends: ChannelEnd[] = [];
    const encodedArgs = args.map((arg) => mapArguments(arg, (value) => encodeArgument(value, this.#stream(), ends)));
    const size = this.place().components[component.name]?.ranks.length ?? 0;
    const handle = this.#calls.call({
      component,
      ranks: ranks ?? Array.from({ length: size }, (_, index) => index),
      method,
      args: encodedArgs,
      ends,
      step: this.step,
      observe: this.#options.placer?.observer !== undefined,
    });
    this.#callListener(handle);
    return handle;
  }

  #stream(): string {
    return streamOf(this.step);
  }

  #granularity(channel: string): number | "all" {
    const { granularity } = this.place();
    return granularity.channels[channel] ?? granularity.default;
  }

  get #runPrefix(): string {
    return runPrefix(this.#options.runId);
  }

  /** What is this runner's: one that was suspended while another took the run must not clean up after that one. */
  get #segmentPrefix(): string {
    return `${this.#runPrefix}${this.#stateTag}-`;
  }
}

const nothingMore = ({ fromByte, version }: ReadRunFile): RunFilePart => {
  return { fromByte, version, sizeBytes: fromByte, data: "" };
};
