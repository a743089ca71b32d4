/**
 * Every worker process of a run, over all its incarnations: starting, welcoming, replacing and ending them.
 *
 * Owner of: the ranks and their processes. What a death leads to is the supervisor's decision; what calls, channels and
 * locks make of it is theirs; this carries it out in order.
 *
 * F1 a dead process is forgotten everywhere, locks, channels and peers included, before its calls start over.
 * F2 a process that is no more the rank's present incarnation changes nothing.
 * F3 the plan changes only while no call is open; ranks whose place it changes end in order and start from saved state.
 */
import { join, relative } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import {
  type DepotsReply,
  type DeviceSpec,
  type ExitReport,
  type Link,
  OnloadReply,
  type Peer,
  type Plan,
  ReadyMessage,
  readMessage,
  TreadleError,
  toErrorRecord,
} from "@treadle/contracts";
import { createPeer, type LinkTraffic } from "@treadle/transport";
import pLimit from "p-limit";
import { LogFiles } from "../agent/log-file.ts";
import type { ChannelHomes } from "../channel/channel-homes.ts";
import type { LockService } from "../device-lock/lock-service.ts";
import type { SupervisorState } from "../supervisor/supervisor-state.ts";
import { ArtifactFolder } from "./artifact-folder.ts";
import type { ClusterOptions } from "./cluster-options.ts";
import type { Component } from "./component.ts";
import { visibleDevices } from "./devices.ts";
import type { GroupCalls } from "./group-calls.ts";
import { isLaidOutAs, stayingRanks } from "./laid-out.ts";
import { LostPlaces } from "./lost-places.ts";
import type { LaunchRequest, Nodes } from "./nodes.ts";
import { type PendingCall, Rank } from "./rank.ts";
import { RunnerLinks } from "./runner-links.ts";
import type { SavedStates } from "./saved-states.ts";
import { serveWorker } from "./worker-service.ts";

const retryDelayMs = 50;

export type FleetOptions = {
  readonly cluster: ClusterOptions;
  readonly nodes: Nodes;
  readonly segmentPrefix: string;
  readonly components: ReadonlyMap<string, Component>;
  readonly homes: ChannelHomes;
  readonly locks: LockService;
  readonly calls: GroupCalls;
  readonly supervisor: SupervisorState;
  readonly states: SavedStates;
  /** what anybody may ask of this runner over the control plane */
  readonly onCommand: (method: string) => unknown;
  /** nothing that happens from now on counts: the run has failed or is ending */
  readonly isOver: () => boolean;
  readonly onFatal: (error: unknown) => void;
};

export class Fleet {
  readonly #options: FleetOptions;
  /** by component, the largest of ranks that a plan has ended */
  readonly #pastIncarnations = new Map<string, number>();
  readonly #ranks = new Map<string, Rank[]>();
  /** devices that the locks know */
  readonly #devices = new Set<string>();
  readonly #logFiles: LogFiles;
  readonly #artifacts: ArtifactFolder;
  readonly #spawnLimit = pLimit(4);
  readonly #links: RunnerLinks;
  #closing = false;
  readonly #lostPlaces: LostPlaces;
  #restarts = 0;

  constructor(options: FleetOptions) {
    this.#options = options;
    const { cluster, nodes, segmentPrefix } = options;
    this.#links = new RunnerLinks({ cluster, nodes, segmentPrefix, warn: (line) => this.#warn(line) });
    this.#lostPlaces = new LostPlaces({
      nodes,
      config: cluster.config,
      ranks: () => this.all,
      areMates: (component) => options.components.get(component)?.workerClass.restart === "group",
    });
    this.#logFiles = new LogFiles(options.cluster.logs);
    this.#artifacts = new ArtifactFolder(join(options.cluster.runFolder, "artifacts"));
  }

  get traffic(): LinkTraffic {
    return this.#links.traffic;
  }

  get restarts(): number {
    return this.#restarts;
  }

  get all(): readonly Rank[] {
    return [...this.#ranks.values()].flat();
  }

  /** The folder of the runner's sockets, which workers on its node share. */
  get socketFolder(): string {
    return this.#links.socketFolder;
  }

  addDevices(devices: readonly DeviceSpec[]): void {
    for (const { id, memoryBytes } of devices) {
      if (this.#devices.has(id)) continue;
      this.#devices.add(id);
      this.#options.locks.addDevice(id, memoryBytes);
    }
  }

  ranksOf(component: string): readonly Rank[] {
    return this.#ranks.get(component) as Rank[];
  }

  /** A rank by its name, as `rollout/0`. */
  rank(worker: string): Rank | undefined {
    const at = worker.lastIndexOf("/");
    return this.#ranks.get(worker.slice(0, at))?.[Number(worker.slice(at + 1))];
  }

  /** Where large items of a channel can be kept and read from, for a process on this node. */
  depots(channel: string, node: string): DepotsReply {
    const consuming = new Set([...this.#options.homes.consumersOf(channel)].map((worker) => this.rank(worker)?.node));
    return [...this.#options.nodes.depots]
      .filter(([name]) => name !== node)
      .map(([name, addresses]) => ({
        node: name,
        addresses: this.#links.depot(addresses, name),
        consumes: consuming.has(name),
      }));
  }

  /** Makes the ranks of a plan, so that calls have somewhere to wait. */
  layOut(plan: Plan): void {
    for (const name of Object.keys(plan.components)) this.#layOutComponent(name, plan, 0);
  }

  #layOutComponent(name: string, plan: Plan, firstIncarnation: number, staying: readonly Rank[] = []): void {
    const retry = (rank: Rank, call: PendingCall, error: TreadleError) => this.#retry(rank, call, error);
    const ranks = plan.components[name]?.ranks ?? [];
    const present = new Map(staying.map((rank) => [rank.index, rank]));
    const list = ranks.map(
      (place, index) => present.get(index) ?? new Rank(name, index, place, retry, firstIncarnation),
    );
    this.#ranks.set(name, list);
    for (const rank of list) if (!present.has(rank.index)) this.#options.locks.addWorker(rank.name, rank.devices);
  }

  /** Goes over to another plan (F3). Components that keep their devices keep their processes. */
  async adopt(plan: Plan): Promise<void> {
    const moved = [...this.#ranks.keys()].filter(
      (name) => !isLaidOutAs(this.ranksOf(name), plan.components[name]?.ranks),
    );
    const classOf = (name: string) => (this.#options.components.get(name) as Component).workerClass;
    const staying = new Set(
      moved.flatMap((name) => stayingRanks(this.ranksOf(name), plan.components[name]?.ranks, classOf(name))),
    );
    const leaving = moved.flatMap((name) => this.ranksOf(name)).filter((rank) => !staying.has(rank));
    // One that is just starting again could not be ended before it is up.
    await Promise.all(leaving.map((rank) => rank.ready()));
    await Promise.all(leaving.map((rank) => this.#retire(rank)));
    for (const name of moved) this.#layOutAnew(name, plan, staying);
    for (const rank of leaving) this.#tellPeers(rank.name);
    await Promise.all([...staying].map((rank) => this.#resize(rank)));
    // Who pulls from others when it starts comes after those others.
    const pulls = (name: string) => classOf(name).replays.length > 0;
    for (const wave of [moved.filter((name) => !pulls(name)), moved.filter(pulls)]) {
      const starting = wave.flatMap((name) => this.ranksOf(name)).filter((rank) => !staying.has(rank));
      for (const rank of starting) void this.#spawn(rank);
      await Promise.all(starting.map((rank) => rank.ready()));
    }
  }

  #layOutAnew(name: string, plan: Plan, staying: ReadonlySet<Rank>): void {
    const before = this.ranksOf(name);
    // Larger than that of any process which ever had such a name, also of ranks that left under an earlier plan.
    const firstIncarnation = Math.max(this.#pastIncarnations.get(name) ?? 0, ...before.map((rank) => rank.incarnation));
    this.#pastIncarnations.set(name, firstIncarnation);
    this.#layOutComponent(
      name,
      plan,
      firstIncarnation,
      before.filter((rank) => staying.has(rank)),
    );
  }

  /** A rank that dies meanwhile is started with the new number; one that does not answer is made to. */
  async #resize(rank: Rank): Promise<void> {
    const peer = await rank.ready();
    const worldSize = this.ranksOf(rank.component).length;
    const { stopGraceMs } = this.#options.cluster.config.supervision;
    await peer.request("resize", { worldSize }, { timeoutMs: stopGraceMs }).catch(() => rank.process?.end());
  }

  async #retire(rank: Rank): Promise<void> {
    const { process, peer } = rank;
    const { stopGraceMs } = this.#options.cluster.config.supervision;
    rank.incarnation++; // F2
    this.#options.supervisor.unwatch(rank.name);
    if (process?.alive) {
      if (peer) await peer.request("stop", {}, { timeoutMs: stopGraceMs }).catch(() => process.end());
      else process.end();
      await process.stop(stopGraceMs);
    }
    rank.down();
    this.#options.locks.workerDied(rank.name);
    this.#options.homes.workerDied(rank.name);
  }

  /** Starts every rank; resolves when all are ready. */
  async start(): Promise<void> {
    const { nodes, segmentPrefix, cluster } = this.#options;
    await this.#links.open((link) => {
      const [worker, incarnation] = link.remote.split("#");
      const rank = this.rank(worker as string);
      if (!rank || rank.incarnation !== Number(incarnation)) void link.close();
      else this.#serve(rank, createPeer(link));
    });
    await nodes.open(
      { runId: cluster.runId, segmentPrefix },
      {
        onHeartbeat: (worker, incarnation, busyMs) => {
          if (this.rank(worker)?.incarnation === incarnation) {
            this.#options.supervisor.heartbeat(worker, busyMs, performance.now());
          }
        },
        onLog: (worker, level, line) => {
          // Files are named by it, and it comes from afar.
          if (this.rank(worker) !== undefined) this.#log(worker, level, line);
        },
        onCommand: this.#options.onCommand,
      },
    );
    const all = this.all;
    let ready = 0;
    this.#options.cluster.onEvent({ type: "phase", atMs: Date.now(), name: "launching", done: 0, total: all.length });
    for (const rank of all) {
      void this.#spawn(rank);
      void rank.ready().then(
        () =>
          this.#options.cluster.onEvent({
            type: "phase",
            atMs: Date.now(),
            name: "launching",
            done: ++ready,
            total: all.length,
          }),
        () => {},
      );
    }
    await Promise.all(all.map((rank) => rank.ready()));
  }

  /** Ends every process: in order where it is up and the run went well, else at once. */
  async close(inOrder: boolean, started: Promise<void> | undefined): Promise<void> {
    this.#closing = true;
    const ended = new TreadleError("run.stopped", "the run has ended");
    const grace = this.#options.cluster.config.supervision.stopGraceMs;
    // Exits do not count any more, so nobody would wake who waits for a process that is not up yet.
    for (const rank of this.all) if (!rank.peer) rank.fail(ended);
    await started?.catch(() => {});
    await Promise.all(
      this.all.map(async (rank) => {
        const { process, peer } = rank;
        rank.fail(ended);
        if (!process?.alive) return;
        if (!peer || !inOrder) return process.end();
        await peer.request("stop", {}, { timeoutMs: grace }).catch(() => process.end());
        await process.stop(grace);
      }),
    );
    await this.#options.nodes.close();
    await this.#links.close();
    this.#logFiles.close();
  }

  /** A link from the runner. */
  connect(addresses: readonly string[]): Promise<Link> {
    return this.#links.connect(addresses);
  }

  /** Moves a worker onto its devices; answers with the bytes that it occupies on each. */
  async onload(worker: string): Promise<number> {
    return readMessage(OnloadReply, await this.#ask(worker, "onload")).memoryBytes;
  }

  async offload(worker: string): Promise<void> {
    await this.#ask(worker, "offload");
  }

  /** Frees a worker that is loaded and loads it again. */
  async measureSwap(worker: string): Promise<{ offloadSeconds: number; onloadSeconds: number }> {
    const startedMs = performance.now();
    await this.offload(worker);
    const offloadedMs = performance.now();
    await this.onload(worker);
    return {
      offloadSeconds: (offloadedMs - startedMs) / 1000,
      onloadSeconds: (performance.now() - offloadedMs) / 1000,
    };
  }

  async #ask(worker: string, request: "onload" | "offload"): Promise<unknown> {
    const peer = this.rank(worker)?.control;
    if (!peer) throw new TreadleError("worker.died", `worker '${worker}' is not running`, { origin: { worker } });
    return peer.request(request, {}, { timeoutMs: this.#options.cluster.config.supervision.callTimeoutMs });
  }

  async #spawn(rank: Rank): Promise<void> {
    const { nodes, cluster, onFatal } = this.#options;
    const { startTimeoutMs } = cluster.config.supervision;
    const { incarnation } = rank;
    this.#options.supervisor.starting(rank.name);
    try {
      if (!nodes.has(rank.node)) await this.#findPlace(rank);
      await this.#spawnLimit(async () => {
        if (this.#closing || incarnation !== rank.incarnation) return;
        const process = await nodes.launch(rank.node, this.#launchRequest(rank));
        if (this.#closing || incarnation !== rank.incarnation) return process.end(); // F2
        rank.process = process;
        const timer = setTimeout(() => {
          process.end({
            code: "worker.unresponsive",
            message: `worker '${rank.name}' was not ready within supervision.startTimeoutMs (${startTimeoutMs} ms)`,
          });
        }, startTimeoutMs);
        void process.exited.then((report) => {
          clearTimeout(timer);
          this.#exited(rank, report);
        });
        await Promise.race([rank.ready(), process.exited]).catch(() => {});
        clearTimeout(timer);
      });
    } catch (error) {
      onFatal(error);
    }
  }

  #launchRequest(rank: Rank): LaunchRequest {
    const component = this.#options.components.get(rank.component) as Component;
    const { config, runId, runFolder, projectRoot, telemetry } = this.#options.cluster;
    const { env = {}, memoryLimitMiB } = component.options;
    const launch = this.#options.nodes.launchOf(rank.node);
    return {
      boot: {
        runId,
        component: rank.component,
        rank: rank.index,
        worldSize: this.#ranks.get(rank.component)?.length as number,
        incarnation: rank.incarnation,
        devices: [...rank.devices],
        module: component.module,
        exportName: component.exportName,
        runnerAddresses: this.#links.ownFor(rank.node),
        token: this.#links.token,
        runFolder,
        seed: config.seed,
        trace: config.trace || telemetry !== undefined,
        ...telemetry,
      },
      modulePath: relative(projectRoot, fileURLToPath(component.module)),
      env: { ...visibleDevices(rank.devices, rank.node), ...launch.env, ...env },
      memoryLimitMiB,
      ...(launch.interpreter === undefined ? {} : { interpreter: launch.interpreter }),
    };
  }

  /** The node of a rank is gone, and may come back. Rejects with `node.lost`. */
  async #findPlace(rank: Rank): Promise<void> {
    const lost = rank.node;
    if (!(await this.#lostPlaces.replace(rank, () => this.#closing))) return;
    this.addDevices(this.#options.nodes.places());
    this.#options.locks.addWorker(rank.name, rank.devices);
    this.#warn(`'${rank.name}' moves from node '${lost}' to '${rank.node}' (${rank.devices.join(", ")})`);
  }

  #log(worker: string, level: string, line: string): void {
    if (!this.#options.nodes.isLocal) this.#logFiles.write(worker, line);
    if (level !== "warn" && level !== "error" && level !== "fatal") return;
    this.#options.cluster.onEvent({ type: "log", atMs: Date.now(), worker, line, level });
  }

  #warn(line: string): void {
    this.#options.cluster.onEvent({ type: "log", atMs: Date.now(), worker: "runner", line, level: "warn" });
  }

  /** Everything that a worker may ask of the runner. */
  #serve(rank: Rank, peer: Peer): void {
    serveWorker(peer, {
      rank,
      component: this.#options.components.get(rank.component) as Component,
      homes: this.#options.homes,
      locks: this.#options.locks,
      isRemote: rank.node !== this.#options.nodes.home,
      stateFolder: this.#options.cluster.stateFolder,
      artifacts: this.#artifacts,
      statePath: () => this.#options.states.newest(rank.component),
      onSpans: this.#options.cluster.onSpans,
      resolve: async (worker) => {
        const target = this.rank(worker);
        if (!target) {
          throw new TreadleError(
            "workflow.invalid",
            `no worker is called '${worker}'; this run has ${this.all.map((each) => each.name).join(", ")}`,
          );
        }
        await target.ready();
        const addresses = this.#links.reachable(target.addresses, rank.node, target.node);
        return { addresses, incarnation: target.incarnation };
      },
      depots: (channel) => this.depots(channel, rank.node),
      onReady: (body) => {
        const { addresses, pid, memoryBytes, route } = readMessage(ReadyMessage, body);
        rank.route = route;
        this.#options.locks.reportMemory(rank.name, memoryBytes);
        this.#lostPlaces.reportMemory(rank.name, memoryBytes);
        void this.#welcome(rank, peer, addresses, pid);
      },
    });
  }

  /** A process is set up, with its saved state: it gets its replayed calls before any work. */
  async #welcome(rank: Rank, peer: Peer, addresses: readonly string[], pid: number): Promise<void> {
    const { incarnation } = rank;
    const component = this.#options.components.get(rank.component) as Component;
    try {
      rank.control = peer;
      if (incarnation > 0)
        await this.#options.calls.replay(rank, component, (request) => peer.request("call", request));
      if (incarnation !== rank.incarnation) return;
      this.#options.supervisor.watch(rank.name, performance.now());
      rank.up(peer, addresses);
      const event = { atMs: Date.now(), worker: rank.name, pid };
      this.#options.cluster.onEvent(
        incarnation === rank.firstIncarnation
          ? { type: "worker-started", ...event }
          : { type: "worker-restarted", ...event },
      );
    } catch (error) {
      // When the process died meanwhile, its exit decides what happens next.
      if (rank.process?.alive && incarnation === rank.incarnation) rank.process.end(toErrorRecord(error));
    }
  }

  #exited(rank: Rank, report: ExitReport): void {
    if (this.#closing || report.incarnation !== rank.incarnation) return;
    this.#options.supervisor.unwatch(rank.name);
    if (this.#options.isOver()) return;
    const component = this.#options.components.get(rank.component) as Component;
    const death = { ...report, worker: rank.name, component: rank.component };
    const decision = this.#options.supervisor.died(death, component.workerClass.restart, performance.now());
    this.#options.cluster.onEvent({
      type: "worker-died",
      atMs: Date.now(),
      worker: rank.name,
      ...(report.pid === undefined ? {} : { pid: report.pid }),
      code: report.code,
      signal: report.signal,
      reason: decision.cause.message,
    });
    if (decision.type === "fail") {
      this.#options.onFatal(decision.cause);
      return;
    }
    const group = this.#ranks.get(rank.component) as Rank[];
    const again = decision.scope === "group" ? group : [rank];
    for (const each of again) {
      each.incarnation++;
      each.down();
      each.process?.end();
      this.#options.supervisor.unwatch(each.name);
      this.#options.locks.workerDied(each.name);
      this.#options.homes.workerDied(each.name);
    }
    for (const each of again) this.#tellPeers(each.name);
    this.#options.calls.startOver(rank, decision.scope);
    for (const each of again) {
      this.#restarts++;
      void this.#spawn(each);
    }
  }

  /** A call failed because of a peer's death: it starts over when everybody is back. */
  async #retry(rank: Rank, call: PendingCall, error: TreadleError): Promise<void> {
    this.#options.calls.startCallOver(call, rank.name);
    // The news of the peer's death may still be on its way.
    await delay(retryDelayMs * 4 ** call.attempts);
    const culprit = error.origin.worker;
    if (culprit !== undefined) await this.rank(culprit)?.ready();
    await Promise.all(this.all.map((each) => each.ready()));
  }

  #tellPeers(worker: string): void {
    for (const rank of this.all) {
      if (rank.name === worker) continue;
      try {
        rank.control?.notify("peer-died", { worker });
      } catch {
        // its own link has just ended too; its exit is on the way
      }
    }
  }
}
