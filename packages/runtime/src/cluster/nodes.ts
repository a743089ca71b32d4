/**
 * The nodes of a run, as its runner sees them: which are there, with which devices, and what runs on each.
 *
 * Owner of: the run's announcement, and the worker processes that were started, wherever they are. Its commands go over
 * the control plane, also when the only node is this process itself.
 *
 * B1 every process that was started ends once: by its node's report, or with its node.
 * B2 a node that was lost is used again only after it has said that nothing of this run is left there (L3).
 */
import { hostname } from "node:os";
import { setTimeout as delay } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import {
  type Announcement,
  CheckReply,
  type ControlPlane,
  type DeviceSpec,
  ExitedCommand,
  HeartbeatsEvent,
  LogEvent,
  type Member,
  type MembershipChange,
  NodeInfo,
  type RunInfo,
  type RunRecord,
  type RuntimeConfig,
  readMessage,
  type SpawnCommand,
  SpawnReply,
  TreadleError,
  toErrorRecord,
} from "@treadle/contracts";
import { codeHash } from "../agent/code-hash.ts";
import { type NodeDevices, shareOutDevices } from "./devices.ts";
import { type LabelledNode, type NodeLaunch, nodeLaunch } from "./node-groups.ts";
import { exitOf, type LaunchedWorker, RemoteWorker } from "./remote-worker.ts";

export type LaunchRequest = Pick<SpawnCommand, "boot" | "modulePath" | "env" | "memoryLimitMiB" | "interpreter">;

export type NodesListener = {
  readonly onHeartbeat: (worker: string, incarnation: number, busyMs: number) => void;
  readonly onLog: (worker: string, level: string, line: string) => void;
  /** Answers what anybody may ask of this runner. */
  readonly onCommand: (method: string) => unknown;
};

export type NodesOptions = {
  readonly plane: ControlPlane;
  readonly cluster: RuntimeConfig["cluster"];
  readonly projectRoot: string;
  /** the one node there is when it is this process; then nothing has to travel */
  readonly ownNode?: { readonly name: string; readonly devices: readonly DeviceSpec[]; close(): Promise<void> };
  readonly onNotice?: (text: string) => void;
};

type OpenRun = { readonly runId: string; readonly segmentPrefix: string };

const commandTimeoutMs = 10_000;
/** A node may have much to hash and many processes to end. */
const slowCommandMs = 60_000;
const releaseTimeoutMs = 15_000;
const recordTimeoutMs = 5000;
const beatWhileCutOffMs = 1000;

export class Nodes {
  readonly #options: NodesOptions;
  readonly #devices: NodeDevices;
  /** those that run the runner's code and have nothing of this run that it does not know of */
  readonly #usable = new Map<string, Member>();
  readonly #workers = new Map<string, RemoteWorker>();
  /** node to the addresses where large items are kept there for processes of other nodes */
  readonly #depots = new Map<string, readonly string[]>();
  readonly #waiting = new Set<() => void>();
  readonly #ends: (() => void)[] = [];
  #codeHash: Promise<string> | undefined;
  #announcement: Announcement | undefined;
  #run: OpenRun | undefined;
  #info: RunInfo | undefined;
  #listener: NodesListener | undefined;
  #answer: (method: string, body: unknown) => unknown = () => {
    throw new TreadleError("node.unavailable", "the run is starting; ask again in a moment");
  };
  #closed: Promise<void> | undefined;
  #revision = 0;

  constructor(options: NodesOptions) {
    this.#options = options;
    this.#devices = shareOutDevices(options.cluster);
    const { plane } = options;
    this.#ends.push(plane.onMember("node", (change) => this.#onNode(change)));
    if (options.ownNode === undefined) return;
    for (const member of plane.members("node")) this.#usable.set(member.name, member);
  }

  /** True when the runner's process is the one node. */
  get isLocal(): boolean {
    return this.#options.ownNode !== undefined;
  }

  /** The node that the runner counts as; no other process is on it, unless the runner is a node itself. */
  get home(): string {
    return this.#options.ownNode?.name ?? `runner of ${hostname()}`;
  }

  /** Waits for as many nodes as the configuration wants. Rejects with `node.unavailable`. */
  async find(): Promise<void> {
    const { plane, cluster } = this.#options;
    const found = new Set<string>();
    const deadlineMs = performance.now() + cluster.nodeWaitMs;
    for (;;) {
      const fresh = plane.members("node").filter(({ name }) => !found.has(name));
      for (const { name } of fresh) found.add(name);
      await Promise.all(fresh.map((member) => this.#admit(member)));
      if (this.#usable.size >= cluster.minNodes) return;
      const leftMs = deadlineMs - performance.now();
      if (leftMs <= 0) break;
      await this.#change(Math.min(leftMs, 500));
    }
    const others = plane.members("node").filter(({ name }) => !this.#usable.has(name));
    const why = others.map(({ name }) => `'${name}' cannot be used`).join(", ");
    throw new TreadleError(
      "node.unavailable",
      `'${this.#usable.size}' node agents are ready within ${cluster.nodeWaitMs} ms, cluster.minNodes is ${cluster.minNodes}${why && `; ${why}`}; start more with 'treadle node --nats …' in a checkout of the same code`,
    );
  }

  /** Grows whenever a node comes, goes, or begins to drain. */
  get revision(): number {
    return this.#revision;
  }

  /** The devices of the nodes that are there and stay. */
  devices(): readonly DeviceSpec[] {
    return this.#options.ownNode?.devices ?? this.#devices.of(this.#staying);
  }

  get #staying(): ReturnType<typeof readNode>[] {
    return [...this.#usable.values()].map(readNode).filter(({ info }) => !info.isDraining);
  }

  /** Those on which a rank can find a new place: also of nodes that the plan makes no use of. */
  places(): readonly DeviceSpec[] {
    return this.#options.ownNode?.devices ?? this.#devices.withSpares(this.#staying);
  }

  /** The nodes of these devices, in their order. */
  labelled(devices: readonly DeviceSpec[] = this.devices()): LabelledNode[] {
    return [...new Set(devices.map(({ node }) => node))].map((node) => this.#labelled(node));
  }

  /** How worker processes are started on a node. */
  launchOf(node: string): NodeLaunch {
    return nodeLaunch(this.#options.cluster, this.labelled(), this.#labelled(node));
  }

  #labelled(name: string): LabelledNode {
    const member = this.#usable.get(name);
    return { name, labels: member === undefined ? {} : readNode(member).info.labels };
  }

  has(node: string): boolean {
    return this.#usable.has(node);
  }

  /** By node. */
  get depots(): ReadonlyMap<string, readonly string[]> {
    return this.#depots;
  }

  /** Resolves with whether `holds` does, as soon as it does, or in the end. */
  async until(holds: () => boolean, limitMs: number): Promise<boolean> {
    const deadlineMs = performance.now() + limitMs;
    while (!holds()) {
      const leftMs = deadlineMs - performance.now();
      if (leftMs <= 0 || this.#closed) return false;
      await this.#change(leftMs);
    }
    return true;
  }

  /**
   * Announces the run unless a runner of it is there: rejects with `run.locked` then. `onLost`: another one has announced
   * itself, which it does only when this one was not heard.
   */
  async claim(runId: string, onLost: (error: TreadleError) => void): Promise<void> {
    if (this.#options.plane.members("run").some(({ name }) => name === runId)) {
      throw new TreadleError(
        "run.locked",
        `run '${runId}' is in use by another runner; stop that one first with 'treadle stop ${runId}', or start a new run`,
      );
    }
    const announcement = await this.#announce(runId);
    announcement.onReplaced(() =>
      onLost(
        new TreadleError(
          "run.locked",
          `run '${runId}' was taken by another runner while this one was silent; follow that one`,
        ),
      ),
    );
  }

  async #announce(runId: string): Promise<Announcement> {
    if (this.#announcement === undefined) {
      this.#info = { runId, host: hostname(), pid: process.pid, startedAt: new Date().toISOString() };
      this.#announcement = await this.#options.plane.announce("run", runId, this.#info, (method, body) =>
        this.#answer(method, body),
      );
    }
    return this.#announcement;
  }

  /** Announces the run: from now on nodes can report to it. */
  async open(run: OpenRun, listener: NodesListener): Promise<void> {
    const { plane } = this.#options;
    this.#run = run;
    this.#listener = listener;
    this.#answer = (method, body) => {
      if (method !== "exited") return listener.onCommand(method);
      const { node, report } = readMessage(ExitedCommand, body);
      this.#workers.get(keyOf(report.worker, report.incarnation))?.settle(node, report);
      return undefined;
    };
    await this.#announce(run.runId);
    this.#ends.push(
      // What does not parse was sent by no agent of ours.
      plane.subscribe(`heartbeats.${run.runId}`, (body) => {
        const event = HeartbeatsEvent.safeParse(body);
        if (event.success) this.#beats(event.data);
      }),
      plane.subscribe(`log.${run.runId}`, (body) => {
        for (const { worker, level, line } of LogEvent.safeParse(body).data?.lines ?? []) {
          listener.onLog(worker, level, line);
        }
      }),
    );
    if (this.isLocal) return;
    await this.record("running", 0);
    const timer = setInterval(() => this.#beatForAll(), beatWhileCutOffMs);
    this.#ends.push(() => clearInterval(timer));
  }

  /**
   * Starts a process. One whose node goes away meanwhile has ended with it; rejects with `node.unavailable` and
   * `worker.load-failed`, which trying again does not mend.
   */
  async launch(node: string, request: LaunchRequest): Promise<LaunchedWorker> {
    const { boot } = request;
    const name = `${boot.component}/${boot.rank}`;
    const worker = new RemoteWorker(name, boot.incarnation, node, {
      command: (method, body) => this.#tell(node, method, { worker: name, incarnation: boot.incarnation, ...body }),
      ended: () => this.#workers.delete(keyOf(name, boot.incarnation)),
    });
    this.#workers.set(keyOf(name, boot.incarnation), worker);
    const member = this.#usable.get(node);
    try {
      if (member === undefined) throw new TreadleError("node.lost", `node '${node}' is not there`);
      worker.pid = await this.#spawn(member, request);
    } catch (error) {
      if (member !== undefined && error instanceof TreadleError && error.code === "node.lost") {
        this.#lose(member, error.message); // it has gone before its lease is over
      }
      if (!(error instanceof TreadleError) || error.disposition !== "retryable") {
        this.#workers.delete(keyOf(name, boot.incarnation));
        throw error;
      }
      worker.settle(node, exitOf(worker, toErrorRecord(error)));
    }
    return worker;
  }

  /** Writes down how the run goes, for when its runner has left. */
  async record(state: RunRecord["state"], step: number, failure?: string): Promise<void> {
    if (this.#info === undefined || this.isLocal) return;
    const ended = state === "running" ? {} : { endedAt: new Date().toISOString() };
    const record: RunRecord = { ...this.#info, state, step, ...ended, ...(failure === undefined ? {} : { failure }) };
    const kept = this.#options.plane.keep(record.runId, record).catch((error: Error) => {
      this.#options.onNotice?.(`the state of the run could not be kept: ${error.message}`);
    });
    await Promise.race([kept, delay(recordTimeoutMs, undefined, { ref: false })]);
  }

  /** Ends every process, leaves, and disconnects. */
  close(): Promise<void> {
    this.#closed ??= (async () => {
      const { plane, ownNode } = this.#options;
      this.#changed();
      if (this.#run !== undefined) {
        const release = { run: this.#run.runId, session: this.#announcement?.incarnation ?? 0 };
        const isHeard = this.#announcement !== undefined && plane.isConnected;
        const members = isHeard ? [...this.#usable.values()] : [];
        // A node that does not answer notices by itself that the run is over.
        await Promise.all(
          members.map((member) =>
            plane.command(member, "release", release, { timeoutMs: releaseTimeoutMs }).catch(() => {}),
          ),
        );
        await this.#announcement?.withdraw("the run is over").catch(() => {});
      }
      for (const end of this.#ends) end();
      await ownNode?.close();
      await plane.close();
    })();
    return this.#closed;
  }

  async #spawn(member: Member, request: LaunchRequest): Promise<number | undefined> {
    const { plane, projectRoot } = this.#options;
    const run = this.#run as OpenRun;
    const body: SpawnCommand = {
      ...request,
      run: run.runId,
      session: this.#announcement?.incarnation ?? 0,
      segmentPrefix: run.segmentPrefix,
      projectRoot: pathToFileURL(`${projectRoot}/`).href,
      codeHash: await this.#ownCodeHash(),
    };
    for (let attempt = 0; ; attempt++) {
      try {
        const reply = await plane.command(member, "spawn", body, { timeoutMs: slowCommandMs });
        const { pid, depot } = readMessage(SpawnReply, reply);
        if (depot && this.#usable.get(member.name) === member) this.#depots.set(member.name, depot);
        return pid;
      } catch (error) {
        // It may have been done, or not: doing it again does it once.
        if (!(error instanceof TreadleError) || error.code !== "call.timeout") throw error;
        if (attempt > 2 || this.#usable.get(member.name) !== member)
          throw new TreadleError("node.lost", error.message, { cause: error });
      }
    }
  }

  #tell(node: string, method: string, body: object): void {
    const member = this.#usable.get(node);
    if (member === undefined || this.#run === undefined) return; // it is lost, and what it runs with it
    const run = { run: this.#run.runId, session: this.#announcement?.incarnation ?? 0 };
    const ask = (attempt: number): void => {
      this.#options.plane
        .command(member, method, { ...run, ...body }, { timeoutMs: commandTimeoutMs })
        .catch((error: unknown) => {
          const again = error instanceof TreadleError && error.code === "call.timeout" && attempt < 3;
          if (again && this.#usable.get(node) === member) ask(attempt + 1);
        });
    };
    ask(0);
  }

  #onNode(change: MembershipChange): void {
    const { member } = change;
    if (change.type === "changed") {
      const isKnown = this.#usable.get(member.name)?.incarnation === member.incarnation;
      if (isKnown && NodeInfo.safeParse(member.body).success) this.#renew(member);
      return;
    }
    if (change.type === "joined") {
      void this.#admit(member);
      return;
    }
    if (change.type === "left") this.#lose(member, change.reason);
  }

  /** What a node says of itself has changed. */
  #renew(member: Member): void {
    const before = this.#usable.get(member.name);
    const wasDraining = before !== undefined && readNode(before).info.isDraining === true;
    this.#usable.set(member.name, member);
    if (wasDraining || !readNode(member).info.isDraining) return;
    this.#revision++;
    this.#options.onNotice?.(`node '${member.name}' drains: its ranks move before the next step, where there is room`);
  }

  #lose(member: Member, reason: string): void {
    if (this.#usable.get(member.name)?.incarnation !== member.incarnation) return;
    this.#usable.delete(member.name);
    this.#revision++;
    this.#depots.delete(member.name);
    this.#options.onNotice?.(`node '${member.name}' is lost: ${reason}`);
    for (const worker of [...this.#workers.values()]) {
      if (worker.node !== member.name) continue;
      const failure = {
        code: "node.lost",
        message: `worker '${worker.worker}' is lost with node '${member.name}': ${reason}`,
        details: { node: member.name, incarnation: member.incarnation },
      };
      worker.settle(member.name, exitOf(worker, failure)); // B1
    }
    this.#changed();
  }

  /** Takes a node into use when its code is the runner's, and nothing of this run is left there (B2). */
  async #admit(member: Member): Promise<void> {
    const { plane, onNotice } = this.#options;
    if (this.isLocal) {
      this.#usable.set(member.name, member);
      return;
    }
    try {
      readMessage(NodeInfo, member.body);
      const reply = await plane.command(member, "check", {}, { timeoutMs: slowCommandMs });
      if (readMessage(CheckReply, reply).codeHash !== (await this.#ownCodeHash())) {
        onNotice?.(`node '${member.name}' is not used: its code is not the runner's; bring both to the same version`);
        return;
      }
      if (this.#run !== undefined && this.#announcement !== undefined) {
        const release = { run: this.#run.runId, session: this.#announcement.incarnation };
        await plane.command(member, "release", release, { timeoutMs: slowCommandMs });
      }
    } catch (error) {
      onNotice?.(`node '${member.name}' is not used: ${(error as Error).message}`);
      return;
    }
    const isStillThere = plane
      .members("node")
      .some(({ name, incarnation }) => name === member.name && incarnation === member.incarnation);
    if (!isStillThere || this.#closed) return;
    this.#usable.set(member.name, member);
    this.#revision++;
    if (this.#run !== undefined) onNotice?.(`node '${member.name}' has joined`);
    this.#changed();
  }

  #ownCodeHash(): Promise<string> {
    this.#codeHash ??= this.isLocal ? Promise.resolve("") : codeHash(this.#options.projectRoot);
    return this.#codeHash;
  }

  #beats(event: HeartbeatsEvent): void {
    if (event.session !== this.#announcement?.incarnation) return;
    for (const { worker, incarnation, busyMs } of event.beats) this.#listener?.onHeartbeat(worker, incarnation, busyMs);
  }

  /** While the control plane is away, nobody can be heard: silence counts for nothing. */
  #beatForAll(): void {
    if (this.#options.plane.isConnected) return;
    for (const { worker, incarnation } of this.#workers.values()) this.#listener?.onHeartbeat(worker, incarnation, 0);
  }

  #changed(): void {
    for (const wake of [...this.#waiting]) wake();
  }

  #change(limitMs: number): Promise<void> {
    return new Promise((resolve) => {
      const wake = () => {
        clearTimeout(timer);
        this.#waiting.delete(wake);
        resolve();
      };
      const timer = setTimeout(wake, limitMs);
      this.#waiting.add(wake);
    });
  }
}

const keyOf = (worker: string, incarnation: number): string => `${worker}#${incarnation}`;

function readNode(member: Member): { name: string; info: NodeInfo } {
  return { name: member.name, info: readMessage(NodeInfo, member.body) };
}
