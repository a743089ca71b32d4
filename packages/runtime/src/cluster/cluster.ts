/**
 * The runner's side of a run: components, their ranks over all incarnations, channels, locks, and who may do what when.
 *
 * Owner of: everything in the runner's process that must agree: the registry of workers, the homes of all channels, the
 * lock service, the open calls. It decides nothing itself: placement is the planner's, restarts are the supervisor's.
 *
 * Lifecycle: launch components and define channels → `start` (placement, processes; by itself at the first call) →
 * calls → `close`. A failure that restarts cannot mend moves it to failed, from where only `close` leads on.
 */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import * as contracts from "@treadle/contracts";
import {
  type ChannelRef,
  OnloadReply,
  type Peer,
  type Plan,
  ReadyMessage,
  type RunEvent,
  type RuntimeConfig,
  TreadleError,
  toErrorRecord,
  type WorkerBoot,
} from "@treadle/contracts";
import { resolvePlacement } from "@treadle/planner";
import {
  createPeer,
  type Endpoint,
  openEndpoint,
  PayloadReader,
  PayloadStore,
  removeSegment,
  removeSegments,
} from "@treadle/transport";
import pLimit from "p-limit";
import type { z } from "zod";
import { type ExitReport, NodeAgent } from "../agent/node-agent.ts";
import type { Channel, ChannelOptions } from "../channel/channel.ts";
import type { Payloads } from "../channel/channel-client.ts";
import { type ChannelEnd, ChannelHomes } from "../channel/channel-homes.ts";
import { keptPrefix, type PayloadEffect } from "../channel/kept-payloads.ts";
import { ChannelEndpoint, RunnerChannel, runnerName } from "../channel/runner-channel.ts";
import { LockService } from "../device-lock/lock-service.ts";
import { createGroup, describeGroup, groupRef, type WorkerGroup } from "../group/group.ts";
import type { CallHandle } from "../group/handle.ts";
import { mapArguments } from "../host/call-arguments.ts";
import { locateExport } from "../host/module-loader.ts";
import { SupervisorState } from "../supervisor/supervisor-state.ts";
import { type AnyWorkerClass, type ConfigOf, methodNames, type WorkerClass } from "../worker.ts";
import { type Component, componentName, type LaunchOptions } from "./component.ts";
import { localDevices, visibleDevices } from "./devices.ts";
import { GroupCalls } from "./group-calls.ts";
import { type PendingCall, Rank } from "./rank.ts";
import { SavedStates } from "./saved-states.ts";
import { makeSocketFolder, removeDeadSocketFolders, runnerSocket } from "./socket-folder.ts";
import { channelWaits, describeStandstill } from "./standstill.ts";
import { serveWorker } from "./worker-service.ts";

export type ClusterOptions = {
  readonly runId: string;
  readonly config: RuntimeConfig;
  readonly projectRoot: string;
  readonly runFolder: string;
  readonly logs: string;
  /** a folder for the newest state of each component */
  readonly stateFolder: string;
  readonly workflowModule: { readonly url: string; readonly exports: Readonly<Record<string, unknown>> } | undefined;
  readonly onEvent: (event: RunEvent) => void;
  readonly onSpans: (batch: unknown) => void;
  /** called instead of the first call, by which everything is placed and nothing started */
  readonly dryRun?: (() => never) | undefined;
};

const node = "node:0";
const retryDelayMs = 50;

export class Cluster {
  readonly #options: ClusterOptions;
  readonly #components = new Map<string, Component>();
  readonly #ranks = new Map<string, Rank[]>();
  readonly #channels = new Map<string, RunnerChannel<unknown>>();
  readonly #homes: ChannelHomes;
  readonly #payloads: Payloads;
  readonly #locks: LockService;
  readonly #calls: GroupCalls;
  readonly #supervisor: SupervisorState;
  readonly #agent: NodeAgent;
  readonly #states = new SavedStates();
  readonly #spawnLimit = pLimit(4);
  readonly #token = crypto.randomUUID();
  readonly #stateTag = crypto.randomUUID().slice(0, 8);
  #endpoint: Endpoint | undefined;
  #socketFolder = "";
  #plan: Plan | undefined;
  #started: Promise<void> | undefined;
  #ticker: NodeJS.Timeout | undefined;
  #failure: TreadleError | undefined;
  #closing = false;
  #restarts = 0;
  /** the step that calls and puts belong to now; set by the run */
  step: number | undefined;
  #callListener: (handle: CallHandle<unknown>) => void = () => {};
  #failureListener: (error: TreadleError) => void = () => {};

  constructor(options: ClusterOptions) {
    this.#options = options;
    const { supervision } = options.config;
    this.#supervisor = new SupervisorState(supervision, performance.now());
    // S4: what a killed runner of this run and its workers left; before the workflow puts anything
    if (!options.dryRun) removeSegments(this.#segmentPrefix);
    this.#payloads = {
      store: new PayloadStore(keptPrefix(this.#segmentPrefix, runnerName, 0)),
      reader: new PayloadReader(keptPrefix(this.#segmentPrefix), (segment) =>
        this.#homes.read(runnerName, { segments: [segment] }),
      ),
    };
    const progress = () => this.#supervisor.progress(performance.now());
    this.#homes = new ChannelHomes({
      now: () => performance.now(),
      onProgress: progress,
      onEnqueued: (call) => this.#locks.enqueued(call),
      onWait: (call, end, on) => this.#locks.waits(call, end, on),
      payloads: this.#payloads,
      onFreed: (effect) => this.#freed(effect),
    });
    this.#locks = new LockService({
      timeoutMs: supervision.lockTimeoutMs,
      onProgress: progress,
      onload: async (worker) => OnloadReply.parse(await this.#ask(worker, "onload")).memoryBytes,
      offload: (worker) => this.#ask(worker, "offload"),
      channelWaits: () => channelWaits(this.#homes.snapshots()),
    });
    this.#calls = new GroupCalls({
      homes: this.#homes,
      locks: this.#locks,
      timeoutMs: supervision.callTimeoutMs,
      // Sequences begin anew with each runner; the files that the journal of an earlier one refers to stay as they are.
      savePath: (component, sequence) => join(options.stateFolder, `${component}.${this.#stateTag}-${sequence}.state`),
      onSaved: (component, path, step) => this.#states.save(component, path, step),
      onProgress: progress,
      onFailure: (error) => this.#noteFailure(error),
    });
    this.#agent = new NodeAgent({
      name: node,
      projectRoot: options.projectRoot,
      logs: options.logs,
      listener: {
        onHeartbeat: (worker, incarnation, beat) => {
          if (this.#rank(worker)?.incarnation === incarnation) {
            this.#supervisor.heartbeat(worker, beat.busyMs, performance.now());
          }
        },
        onLog: (worker, level, line) => {
          if (level === "warn" || level === "error" || level === "fatal") {
            this.#emit({ type: "log", atMs: Date.now(), worker, line, level });
          }
        },
      },
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

  get plan(): Plan | undefined {
    return this.#plan;
  }
  get failure(): TreadleError | undefined {
    return this.#failure;
  }
  get restarts(): number {
    return this.#restarts;
  }
  /** The saved states of the components: file paths. */
  get states(): SavedStates {
    return this.#states;
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
    const found = this.#locateClass(anyClass);
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
    const channel = new RunnerChannel<T>(name, schema, this.#homes, reference, () => this.#stream());
    this.#channels.set(name, channel as RunnerChannel<unknown>);
    return channel;
  }

  /** Uses saved states, of a run that is resumed or of a checkpoint, for components that are about to start. */
  restoreStates(states: Readonly<Record<string, string>>): void {
    for (const [component, path] of Object.entries(states)) this.#states.save(component, path, undefined);
  }

  /** Decides where everything runs; starts nothing. Throws `placement.impossible` with the nearest possible one. */
  place(): Plan {
    if (this.#plan) return this.#plan;
    const { config } = this.#options;
    if (this.#components.size === 0) {
      throw new TreadleError(
        "workflow.invalid",
        "the workflow launches no component; call cluster.launch before anything else",
      );
    }
    const explicit = Object.fromEntries(
      Object.entries(config.placement.components).map(([key, value]) => [key, String(value)]),
    );
    this.#plan = resolvePlacement({
      mode: config.placement.mode,
      components: [...this.#components.values()].map(({ name, options }) => ({
        name,
        ...(options.ranks ? { ranks: options.ranks } : {}),
        ...(options.devicesPerRank ? { devicesPerRank: options.devicesPerRank } : {}),
        ...(options.deviceKind ? { deviceKind: options.deviceKind } : {}),
        ...(options.weight ? { weight: options.weight } : {}),
        ...(options.memoryPerDeviceMiB ? { memoryBytesPerDevice: options.memoryPerDeviceMiB * 2 ** 20 } : {}),
      })),
      ...(Object.keys(explicit).length > 0 ? { explicit } : {}),
      devices: localDevices(config.cluster, node),
      ...(Object.keys(config.cluster.nodeGroups).length > 0 ? { nodeGroups: config.cluster.nodeGroups } : {}),
      batchItems: config.batch,
      granularity:
        typeof config.flow.granularity === "object" ? withoutAuto(config.flow.granularity) : config.flow.granularity,
      maxStaleness: config.flow.maxStaleness,
    });
    return this.#plan;
  }

  /** Places and starts everything that was launched; calls do it by themselves. */
  start(): Promise<void> {
    if (!this.#started) {
      const plan = this.place();
      this.#layOut(plan);
      this.#started = this.#startAll(plan);
      this.#started.catch((error) => this.#fail(error));
    }
    return this.#started;
  }

  /** Fails everything that is under way. */
  abort(error: unknown): void {
    this.#fail(error);
  }

  async close(): Promise<void> {
    if (this.#closing) return;
    this.#closing = true;
    clearInterval(this.#ticker);
    const ended = new TreadleError("run.stopped", "the run has ended");
    const grace = this.#options.config.supervision.stopGraceMs;
    // Exits do not count any more, so nobody would wake who waits for a process that is not up yet.
    for (const rank of [...this.#ranks.values()].flat()) if (!rank.peer) rank.fail(ended);
    await this.#started?.catch(() => {});
    await Promise.all(
      [...this.#ranks.values()].flat().map(async (rank) => {
        const process = rank.process;
        const peer = rank.peer;
        rank.fail(ended);
        if (!process?.alive) return;
        if (!peer || this.#failure) return process.end();
        await peer.request("stop", {}, { timeoutMs: grace }).catch(() => process.end());
        await process.stop(grace);
      }),
    );
    this.#calls.fail(ended);
    this.#homes.fail(ended);
    this.#locks.fail(ended);
    await this.#agent.close();
    await this.#endpoint?.close();
    if (this.#socketFolder) await rm(this.#socketFolder, { recursive: true, force: true });
    this.#payloads.store.close();
    removeSegments(this.#segmentPrefix);
  }

  #layOut(plan: Plan): void {
    for (const device of localDevices(this.#options.config.cluster, node)) {
      this.#locks.addDevice(device.id, device.memoryBytes);
    }
    for (const [name, { ranks }] of Object.entries(plan.components)) {
      const retry = (rank: Rank, call: PendingCall, error: TreadleError) => this.#retry(rank, call, error);
      const list = ranks.map(({ devices }, index) => new Rank(name, index, devices, retry));
      this.#ranks.set(name, list);
      for (const rank of list) this.#locks.addWorker(rank.name, rank.devices);
    }
  }

  async #startAll(plan: Plan): Promise<void> {
    this.#emit({
      type: "plan",
      atMs: Date.now(),
      explanation: plan.explanation,
      placement: Object.entries(plan.components).map(([component, { ranks }]) => ({
        component,
        devices: [...new Set(ranks.flatMap((rank) => rank.devices))],
        mode: plan.sharing.some((group) => group.components.includes(component))
          ? plan.mode === "temporal"
            ? "temporal"
            : "hybrid"
          : "spatial",
      })),
    });
    await removeDeadSocketFolders();
    this.#socketFolder = await makeSocketFolder();
    this.#endpoint = await openEndpoint({
      name: "runner",
      runId: this.#options.runId,
      token: this.#token,
      unixPath: join(this.#socketFolder, runnerSocket),
      segments: { prefix: this.#segmentPrefix },
    });
    this.#endpoint.onLink((link) => {
      const [worker, incarnation] = link.remote.split("#");
      const rank = this.#rank(worker as string);
      if (!rank || rank.incarnation !== Number(incarnation)) void link.close();
      else this.#serve(rank, createPeer(link));
    });
    this.#ticker = setInterval(() => this.#tick(), 500);
    const all = [...this.#ranks.values()].flat();
    let ready = 0;
    this.#emit({ type: "phase", atMs: Date.now(), name: "launching", done: 0, total: all.length });
    for (const rank of all) {
      void this.#spawn(rank);
      void rank.ready().then(
        () => this.#emit({ type: "phase", atMs: Date.now(), name: "launching", done: ++ready, total: all.length }),
        () => {},
      );
    }
    await Promise.all(all.map((rank) => rank.ready()));
  }

  async #spawn(rank: Rank): Promise<void> {
    const component = this.#components.get(rank.component) as Component;
    const worldSize = this.#ranks.get(rank.component)?.length as number;
    const { config, runId, runFolder, workflowModule } = this.#options;
    const boot: WorkerBoot = {
      runId,
      component: rank.component,
      rank: rank.index,
      worldSize,
      incarnation: rank.incarnation,
      devices: [...rank.devices],
      node,
      module: component.module,
      exportName: component.exportName,
      ...(workflowModule ? { workflowModule: workflowModule.url } : {}),
      runnerAddresses: [...(this.#endpoint as Endpoint).addresses],
      listenPath: join(this.#socketFolder, `${rank.component}-${rank.index}-${rank.incarnation}`),
      token: this.#token,
      runFolder,
      segmentPrefix: this.#segmentPrefix,
      seed: config.seed,
      trace: config.trace,
    };
    try {
      await this.#spawnLimit(async () => {
        if (this.#closing) return;
        const { env = {}, memoryLimitMiB } = component.options;
        const process = await this.#agent.spawn({
          boot,
          env: { ...visibleDevices(rank.devices), ...env },
          memoryLimitMiB,
        });
        rank.process = process;
        const timer = setTimeout(() => {
          process.end({
            code: "worker.unresponsive",
            message: `worker '${rank.name}' was not ready within supervision.startTimeoutMs (${config.supervision.startTimeoutMs} ms)`,
          });
        }, config.supervision.startTimeoutMs);
        void process.exited.then((report) => {
          clearTimeout(timer);
          this.#exited(rank, report);
        });
        await Promise.race([rank.ready(), process.exited]).catch(() => {});
        clearTimeout(timer);
      });
    } catch (error) {
      this.#fail(error);
    }
  }

  /** Everything that a worker may ask of the runner. */
  #serve(rank: Rank, peer: Peer): void {
    serveWorker(peer, {
      rank,
      component: this.#components.get(rank.component) as Component,
      homes: this.#homes,
      locks: this.#locks,
      statePath: () => this.#states.newest(rank.component),
      onSpans: this.#options.onSpans,
      resolve: async (worker) => {
        const target = this.#rank(worker);
        if (!target) {
          throw new TreadleError(
            "workflow.invalid",
            `no worker is called '${worker}'; this run has ${this.#workerNames().join(", ")}`,
          );
        }
        await target.ready();
        return { addresses: [...target.addresses], incarnation: target.incarnation };
      },
      onReady: (body) => {
        const { addresses, pid, memoryBytes } = ReadyMessage.parse(body);
        this.#locks.reportMemory(rank.name, memoryBytes);
        void this.#welcome(rank, peer, addresses, pid);
      },
    });
  }

  /** A process is set up, with its saved state: it gets its replayed calls before any work. */
  async #welcome(rank: Rank, peer: Peer, addresses: readonly string[], pid: number): Promise<void> {
    const { incarnation } = rank;
    const component = this.#components.get(rank.component) as Component;
    try {
      rank.control = peer;
      if (incarnation > 0) await this.#calls.replay(rank, component, (request) => peer.request("call", request));
      if (incarnation !== rank.incarnation) return;
      this.#supervisor.watch(rank.name, performance.now());
      rank.up(peer, addresses);
      const event = { atMs: Date.now(), worker: rank.name, pid };
      this.#emit(incarnation === 0 ? { type: "worker-started", ...event } : { type: "worker-restarted", ...event });
    } catch (error) {
      // When the process died meanwhile, its exit decides what happens next.
      if (rank.process?.alive && incarnation === rank.incarnation) rank.process.end(toErrorRecord(error));
    }
  }

  #exited(rank: Rank, report: ExitReport): void {
    if (report.pid !== undefined) removeSegments(`${this.#segmentPrefix}${report.pid}-`); // S4
    if (this.#closing || report.incarnation !== rank.incarnation) return;
    this.#supervisor.unwatch(rank.name);
    if (this.#failure) return;
    const component = this.#components.get(rank.component) as Component;
    const death = { ...report, worker: rank.name, component: rank.component };
    const decision = this.#supervisor.died(death, component.workerClass.restart, performance.now());
    this.#emit({
      type: "worker-died",
      atMs: Date.now(),
      worker: rank.name,
      ...(report.pid === undefined ? {} : { pid: report.pid }),
      code: report.code,
      signal: report.signal,
      reason: decision.cause.message,
    });
    if (decision.type === "fail") {
      this.#fail(decision.cause);
      return;
    }
    const group = this.#ranks.get(rank.component) as Rank[];
    const again = decision.scope === "group" ? group : [rank];
    for (const each of again) {
      each.incarnation++;
      each.down();
      each.process?.end();
      this.#supervisor.unwatch(each.name);
      this.#locks.workerDied(each.name);
      this.#homes.workerDied(each.name);
    }
    for (const each of again) this.#tellPeers(each.name);
    this.#calls.startOver(rank, decision.scope);
    for (const each of again) {
      this.#restarts++;
      void this.#spawn(each);
    }
  }

  /** A call failed because of a peer's death: it starts over when everybody is back. */
  async #retry(rank: Rank, call: PendingCall, error: TreadleError): Promise<void> {
    this.#calls.startCallOver(call, rank.name);
    // The news of the peer's death may still be on its way.
    await delay(retryDelayMs * 4 ** call.attempts);
    const culprit = error.origin.worker;
    if (culprit !== undefined) await this.#rank(culprit)?.ready();
    await Promise.all([...this.#ranks.values()].flat().map((each) => each.ready()));
  }

  /** A large item has been used up by all: its memory goes back to its producer, or is removed with it. */
  #freed(effect: PayloadEffect): void {
    const segments = [effect.segment];
    if (effect.type === "remove") removeSegment(effect.segment);
    else if (effect.producer === runnerName) this.#payloads.store.reuse(segments);
    else {
      try {
        this.#rank(effect.producer)?.control?.notify("segments.reuse", { segments });
      } catch {
        // its link has just ended; the run's end removes the segment
      }
    }
  }

  #tellPeers(worker: string): void {
    for (const rank of [...this.#ranks.values()].flat()) {
      if (rank.name === worker) continue;
      try {
        rank.control?.notify("peer-died", { worker });
      } catch {
        // its own link has just ended too; its exit is on the way
      }
    }
  }

  async #ask(worker: string, request: "onload" | "offload"): Promise<unknown> {
    const peer = this.#rank(worker)?.control;
    if (!peer) throw new TreadleError("worker.died", `worker '${worker}' is not running`, { origin: { worker } });
    return peer.request(request, {}, { timeoutMs: this.#options.config.supervision.callTimeoutMs });
  }

  #tick(): void {
    const now = performance.now();
    this.#locks.tick(now);
    for (const decision of this.#supervisor.tick(now)) {
      if (decision.type === "end-worker") this.#rank(decision.worker)?.process?.end(decision.cause);
      else if (this.#calls.open.length === 0 && channelWaits(this.#homes.snapshots()).length === 0)
        this.#supervisor.progress(now); // nothing is asked of anybody
      else if (decision.type === "report-stall") {
        for (const wait of this.#standstill().waits) {
          this.#emit({
            type: "waiting",
            atMs: Date.now(),
            who: wait.who,
            on: wait.on,
            seconds: decision.stalledMs / 1000,
          });
        }
      } else {
        const { text } = this.#standstill();
        const seconds = Math.round(decision.stalledMs / 1000);
        this.#fail(
          new TreadleError(
            "call.timeout",
            `nothing moved for ${seconds} s: ${text}; raise supervision.stallMs if that is expected`,
          ),
        );
      }
    }
  }

  #standstill(): ReturnType<typeof describeStandstill> {
    return describeStandstill(this.#calls.open, this.#homes.snapshots(), this.#locks.edges(), (worker) =>
      this.#supervisor.busyMs(worker),
    );
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
    for (const rank of [...this.#ranks.values()].flat()) rank.fail(error);
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
    const encodedArgs = args.map((arg) => mapArguments(arg, (value) => this.#encodeArgument(value, ends)));
    const all = this.#ranksOf(component.name);
    const chosen = ranks ? ranks.map((index) => all[index] as Rank) : all;
    const handle = this.#calls.call({ component, ranks: chosen, method, args: encodedArgs, ends, step: this.step });
    this.#callListener(handle);
    return handle;
  }

  #encodeArgument(value: object, ends: ChannelEnd[]): unknown {
    if (value instanceof RunnerChannel) {
      throw new TreadleError(
        "workflow.invalid",
        `channel '${value.name}' was passed whole; pass '${value.name}.source' to who takes or '${value.name}.sink' to who puts`,
      );
    }
    if (value instanceof ChannelEndpoint) {
      const ref = value.reference();
      ends.push({ channel: ref.$channel, role: ref.role, stream: this.#stream() });
      return ref;
    }
    const group = describeGroup(value);
    return group && groupRef(group);
  }

  #ranksOf(component: string): readonly Rank[] {
    return this.#ranks.get(component) as Rank[];
  }

  #rank(worker: string): Rank | undefined {
    const at = worker.lastIndexOf("/");
    return this.#ranks.get(worker.slice(0, at))?.[Number(worker.slice(at + 1))];
  }

  #workerNames(): string[] {
    return [...this.#ranks.values()].flat().map((rank) => rank.name);
  }

  /** Puts and takes of one step belong together; outside of steps they are in one stream that reopens. */
  #stream(): string {
    return this.step === undefined ? "outside" : `step-${this.step}`;
  }

  #granularity(channel: string): number | "all" {
    const { granularity } = this.place();
    return granularity.channels[channel] ?? granularity.default;
  }

  #locateClass(workerClass: AnyWorkerClass): { module: string; exportName: string } {
    const className = workerClass.name;
    if (workerClass.module !== undefined) return { module: workerClass.module, exportName: className };
    const { workflowModule } = this.#options;
    const located = workflowModule && locateExport(workerClass, [workflowModule]);
    if (located) return located;
    throw new TreadleError(
      "worker.load-failed",
      `worker class '${className}' cannot be found by its processes; export it from the workflow's module, or add 'static override readonly module = import.meta.url' to it`,
    );
  }

  get #segmentPrefix(): string {
    return `treadle-${this.#options.runId.replace(/[^A-Za-z0-9_.-]/g, "_")}-`;
  }

  #emit(event: RunEvent): void {
    this.#options.onEvent(event);
  }
}

function withoutAuto(granularity: Readonly<Record<string, number | "all" | "auto">>): Record<string, number | "all"> {
  return Object.fromEntries(
    Object.entries(granularity).filter((entry): entry is [string, number | "all"] => entry[1] !== "auto"),
  );
}
