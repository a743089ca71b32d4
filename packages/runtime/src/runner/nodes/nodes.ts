/**
 * The nodes of a run, as its runner sees them: which are there, with which devices, and what runs on each.
 *
 * Owner of: the run's announcement, and the worker processes that were started, wherever they are. Its commands go over
 * the control plane, also when the only node is this process itself.
 *
 * ND1 every process that was started ends once: by its node's report, with its node, or when that node has it no more.
 * ND2 a node that was lost is used again only after it has said that nothing of this run is left there (L3).
 * ND3 the end of a process counts only from the very process that is its node, and its beats and lines only from holders of
 *    the run's token, as new ones (EV1, EV2).
 * ND4 that a node is lost, or a worker has not reached its runner, the runner alone says, since neither costs a restart (S2);
 *    and of a worker that its node has ended, since it heard nobody, that node.
 */
import { hostname } from "node:os";
import { setTimeout as delay } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import {
  AgentName,
  type Announcement,
  answering,
  ask,
  type CommandHandlers,
  type Commands,
  type ControlPlane,
  type DeviceSpec,
  type HeartbeatsEvent,
  listenTo,
  type Member,
  type MembershipChange,
  NodeInfo,
  type ReadRunFile,
  type RequestOf,
  type RunFilePart,
  type RunInfo,
  type RunStatus,
  type RuntimeConfig,
  readMessage,
  type SpawnCommand,
  TreadleError,
  toErrorRecord,
} from "@treadle/contracts";
import { type MembershipInput, type NodeAnswer, NodeMembership } from "@treadle/core";
import { EventChecker } from "../../node/event-proof.ts";
import { nodeDifference, OwnCode } from "./code-of-nodes.ts";
import { type NodeDevices, shareOutDevices } from "./devices.ts";
import { KnownNodes } from "./known-nodes.ts";
import { NodeCommands } from "./node-commands.ts";
import type { NodeLaunch, NumberedNodes } from "./node-groups.ts";
import { exitOf, type LaunchedWorker, RemoteWorker } from "./remote-worker.ts";
import { KeptRecord } from "./run-record.ts";
import { Neighbours, whyTaken } from "./shared-nodes.ts";

export type LaunchRequest = Pick<SpawnCommand, "boot" | "modulePath" | "env" | "memoryLimitMiB" | "interpreter">;

export type NodesListener = {
  readonly onHeartbeat: (worker: string, incarnation: number, busyMs: number, stack?: string) => void;
  readonly onLog: (worker: string, level: string, line: string) => void;
  /** Answers what anybody may ask of this runner. */
  readonly onStatus: () => RunStatus;
  readonly onRead: (asked: ReadRunFile) => Promise<RunFilePart>;
  /** Resolves when nobody waits for answers of this runner any more; asked before it is withdrawn. */
  readonly onLeave: () => Promise<void>;
  readonly onStop: () => void;
};

export type NodesOptions = {
  readonly plane: ControlPlane;
  readonly cluster: RuntimeConfig["cluster"];
  readonly projectRoot: string;
  /** the run that is to be opened, where one is */
  readonly runId?: string | undefined;
  /** the one node there is when it is this process; then nothing has to travel */
  readonly ownNode?: { readonly name: string; readonly devices: readonly DeviceSpec[]; close(): Promise<void> };
  readonly onNotice?: (text: string) => void;
};

type OpenRun = { readonly runId: string; readonly segmentPrefix: string; readonly token: string };

const releaseTimeoutMs = 15_000;
const beatWhileCutOffMs = 1000;

export class Nodes {
  readonly record: KeptRecord;
  readonly #options: NodesOptions;
  readonly #devices: NodeDevices;
  /** which of them the run uses: decided there, and done here */
  readonly #membership: NodeMembership<Member>;
  readonly #workers = new Map<string, RemoteWorker>();
  /** node to the addresses where large items are kept there for processes of other nodes */
  readonly #depots = new Map<string, readonly string[]>();
  readonly #neighbours = new Neighbours();
  readonly #commands: NodeCommands;
  readonly #known: KnownNodes;
  readonly #code: OwnCode;
  /** when the run began */
  #found: readonly DeviceSpec[] = [];
  readonly #waiting = new Set<() => void>();
  readonly #ends: (() => void)[] = [];
  #announcement: Announcement | undefined;
  #run: OpenRun | undefined;
  #info: RunInfo | undefined;
  #listener: NodesListener | undefined;
  #answers: () => CommandHandlers<"run"> = () => {
    throw new TreadleError("node.unavailable", "the run is starting; ask again in a moment");
  };
  #onTaken: (error: TreadleError) => void = () => {};
  #closed: Promise<void> | undefined;
  readonly #listeners = new Set<() => void>();

  constructor(options: NodesOptions) {
    this.#options = options;
    this.#devices = shareOutDevices(options.cluster);
    const { plane } = options;
    this.#membership = new NodeMembership((member) => this.#factsOf(member));
    this.#commands = new NodeCommands({
      plane,
      isLocal: this.isLocal,
      isUsed: (member) => this.#membership.uses(member) && this.#closed === undefined,
      gaveUp: (member, reason) => this.#giveUp(member, reason),
      missing: (worker, incarnation) => this.#workers.get(keyOf(worker, incarnation))?.missing(),
      doubted: () => this.#changed(),
      notice: (text) => this.#notice(text),
    });
    this.#known = new KnownNodes(options.cluster, (name) => {
      const member = this.#membership.used.get(name);
      return member === undefined ? undefined : readNode(member).info;
    });
    const codeRoot = this.isLocal ? undefined : options.projectRoot;
    this.#code = new OwnCode(codeRoot, (text) => this.#notice(text));
    this.record = new KeptRecord(plane, (text) => this.#notice(text));
    this.#ends.push(plane.onMember("node", (change) => this.#onNode(change)));
    if (options.ownNode === undefined) return;
    for (const node of plane.members("node")) this.#decide({ type: "there", node });
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
    const { minNodes, nodeWaitMs } = cluster;
    const deadlineMs = performance.now() + nodeWaitMs;
    for (;;) {
      for (const node of plane.members("node")) this.#decide({ type: "there", node });
      const decision = this.#membership.awaits(minNodes, deadlineMs, performance.now());
      if (decision.type === "go") {
        this.#found = this.devices();
        this.#known.of(this.#found); // a node may be gone before anybody asks
        for (const node of decision.without)
          this.#notice(`begins without node '${node}', which is there and has not answered`);
        return;
      }
      if (decision.type === "fail") break;
      await this.#change(Math.min(decision.untilMs - performance.now(), 500));
    }
    const staying = new Set(this.#staying.map(({ name }) => name));
    const others = plane.members("node").filter(({ name }) => !staying.has(name));
    const why = others.map((member) => this.#membership.whyNot(member)).join(", ");
    throw new TreadleError(
      "node.unavailable",
      `'${staying.size}' node agents are ready within ${cluster.nodeWaitMs} ms, cluster.minNodes is ${cluster.minNodes}${why && `; ${why}`}; start more with 'treadle node --nats …' in a checkout of the same code`,
    );
  }

  /** Grows whenever a node comes, goes, or begins to drain. */
  get revision(): number {
    return this.#membership.revision;
  }

  /** The devices of the nodes that are there and stay. */
  devices(): readonly DeviceSpec[] {
    return this.#options.ownNode?.devices ?? this.#devices.of(this.#staying);
  }

  /** The same, and after them those that it began with: what is placed on nodes that have gone moves to others. */
  devicesToPlaceOn(): readonly [readonly DeviceSpec[], ...(readonly DeviceSpec[])[]] {
    const present = this.devices();
    if (present.length === 0) return [this.#found];
    const ids = new Set(present.map(({ id }) => id));
    return this.#found.every(({ id }) => ids.has(id)) ? [present] : [present, this.#found];
  }

  get #staying() {
    return [...this.#membership.used.values()].map(readNode).filter(({ info }) => !info.isDraining);
  }

  /** Those on which a rank can find a new place: also of nodes that the plan makes no use of; none of one that may have gone. */
  places(): readonly DeviceSpec[] {
    const all = this.#options.ownNode?.devices ?? this.#devices.withSpares(this.#staying);
    return all.filter(({ node }) => !this.#commands.doubts(node));
  }

  /** The nodes of these devices, in their order. */
  labelled(devices: readonly DeviceSpec[]): NumberedNodes {
    return this.#known.of(devices);
  }

  /** How worker processes are started on a node. */
  launchOf(node: string): NodeLaunch {
    return this.#known.launchOf(node);
  }

  get present(): string[] {
    return [...this.#membership.used.keys()];
  }

  /** Told whenever what `present` or `places` say may have changed. */
  onChanged(listener: () => void): void {
    this.#listeners.add(listener);
  }

  /** By node. */
  get depots(): ReadonlyMap<string, readonly string[]> {
    return this.#depots;
  }

  /** Told with `run.locked` when another runner of the run has announced itself: nodes work for that one from then on. */
  onTaken(listener: (error: TreadleError) => void): void {
    this.#onTaken = listener;
  }

  /** Announces the run unless a runner of it is there: rejects with `run.locked` then. */
  async claim(runId: string): Promise<void> {
    const { plane } = this.#options;
    const other = plane.members("run").find(({ name, isUntrusted }) => name === runId && !isUntrusted);
    if (other !== undefined && (await plane.provesPresence(other))) {
      throw new TreadleError(
        "run.locked",
        `run '${runId}' is in use by another runner; stop that one first with 'treadle stop ${runId}', or start a new run`,
      );
    }
    await this.#announce(runId);
  }

  async #announce(runId: string): Promise<Announcement> {
    if (this.#announcement === undefined) {
      this.#info = { runId, host: hostname(), pid: process.pid, startedAt: new Date().toISOString() };
      const answer = answering("run", {
        exited: (exited, sender) => this.#answers().exited(exited, sender),
        status: () => this.#answers().status({}),
        read: (asked) => this.#answers().read(asked),
        stop: () => this.#answers().stop({}),
      });
      this.#announcement = await this.#options.plane.announce("run", runId, this.#info, answer);
      const text = `run '${runId}' was taken by another runner, as after a 'treadle resume' elsewhere; follow that one`;
      this.#announcement.onReplaced(() => this.#onTaken(new TreadleError("run.locked", text)));
    }
    return this.#announcement;
  }

  /** Announces the run: from now on nodes can report to it. */
  async open(run: OpenRun, listener: NodesListener): Promise<void> {
    const { plane } = this.#options;
    this.#run = run;
    this.#listener = listener;
    this.#answers = () => ({
      exited: ({ node, report }, sender) => {
        if (sender !== undefined && !sender.is("node", node)) {
          throw new TreadleError("control-plane.untrusted", `another process than node '${node}' speaks for it`); // ND3
        }
        return this.#workers.get(keyOf(report.worker, report.incarnation))?.reported(node, report);
      },
      status: listener.onStatus,
      read: listener.onRead,
      stop: listener.onStop,
    });
    await this.#announce(run.runId);
    const { runId, token } = run;
    const [beats, logs] = [
      new EventChecker({ topic: "heartbeats", run: runId, token }),
      new EventChecker({ topic: "log", run: runId, token }),
    ];
    this.#ends.push(
      listenTo(plane, "heartbeats", runId, (event) => {
        if (beats.isGenuine(event)) this.#beats(event);
      }),
      listenTo(plane, "log", runId, (event) => {
        if (!logs.isGenuine(event)) return;
        for (const { worker, level, line } of event.lines) listener.onLog(worker, level, line);
      }),
    );
    if (this.isLocal) return;
    await this.record.open(this.#info as RunInfo);
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
      command: (verb, body) => this.#tell(node, verb, { worker: name, incarnation: boot.incarnation, ...body }),
      ended: () => this.#workers.delete(keyOf(name, boot.incarnation)),
    });
    this.#workers.set(keyOf(name, boot.incarnation), worker);
    const member = this.#membership.used.get(node);
    try {
      if (member === undefined) throw new TreadleError("node.lost", `node '${node}' is not there`);
      const spawned = this.#spawn(member, request);
      spawned.catch(() => {});
      // With its node it has ended, whatever becomes of the question.
      worker.pid = await Promise.race([spawned, worker.exited.then(() => undefined)]);
    } catch (error) {
      const isTaken = error instanceof TreadleError && error.details["takenBy"] !== undefined;
      const isRefused = error instanceof TreadleError && error.details["refuses"] === true;
      if (member !== undefined && (isTaken || isRefused))
        this.#decide({ type: "refuses", node: member, why: error.message, isTaken });
      if (member !== undefined && error instanceof TreadleError && error.code === "node.lost") {
        this.#giveUp(member, error.message); // it has gone before its lease is over, or hangs
      }
      if (!isTaken && !isRefused && (!(error instanceof TreadleError) || error.disposition !== "retryable")) {
        this.#workers.delete(keyOf(name, boot.incarnation));
        throw error;
      }
      worker.settle(node, exitOf(worker, toErrorRecord(error)));
    }
    return worker;
  }

  /** Something on this node has ended without a word. */
  async doubt(node: string): Promise<void> {
    const member = this.#membership.used.get(node);
    if (member !== undefined && this.#closed === undefined) await this.#commands.doubt(member);
  }

  /** Ends every process, leaves, and disconnects. */
  close(): Promise<void> {
    this.#closed ??= (async () => {
      const { plane, ownNode } = this.#options;
      this.#changed();
      if (this.#run !== undefined) {
        const release = { run: this.#run.runId, session: this.#announcement?.incarnation ?? 0 };
        const isHeard = this.#announcement !== undefined && plane.isConnected;
        const members = isHeard ? [...this.#membership.used.values()] : [];
        // A node that does not answer notices by itself that the run is over.
        await Promise.all(
          members.map((member) =>
            ask(plane, "node", member, "release", release, { timeoutMs: releaseTimeoutMs }).catch(() => {}),
          ),
        );
        if (isHeard) await this.#listener?.onLeave();
        await this.#announcement?.withdraw("the run is over").catch(() => {});
      }
      for (const end of this.#ends) end();
      await ownNode?.close();
      await plane.close();
    })();
    return this.#closed;
  }

  async #spawn(member: Member, request: LaunchRequest): Promise<number | undefined> {
    const { projectRoot, cluster } = this.#options;
    const run = this.#run as OpenRun;
    const body: SpawnCommand = {
      ...request,
      ...(cluster.exclusive ? { exclusive: true } : {}),
      run: run.runId,
      session: this.#announcement?.incarnation ?? 0,
      segmentPrefix: run.segmentPrefix,
      projectRoot: pathToFileURL(`${projectRoot}/`).href,
      codeHash: (await this.#code.look()).hash,
    };
    const { pid, depot } = await this.#commands.spawn(member, body);
    if (depot && this.#membership.used.get(member.name) === member) this.#depots.set(member.name, depot);
    return pid;
  }

  #tell<V extends "end" | "stop">(
    node: string,
    verb: V,
    body: Omit<RequestOf<Commands["node"], V>, "run" | "session">,
  ): void {
    const member = this.#membership.used.get(node);
    if (member === undefined || this.#run === undefined) return; // it is lost, and what it runs with it
    const run = { run: this.#run.runId, session: this.#announcement?.incarnation ?? 0 };
    this.#commands.tell(member, verb, { ...run, ...body } as RequestOf<Commands["node"], V>);
  }

  #onNode(change: MembershipChange): void {
    const node = change.member;
    if (change.type === "changed") this.#decide({ type: "changed", node, hasWorkers: this.#hasWorkersOn(node.name) });
    else if (change.type === "joined") this.#decide({ type: "there", node, isNew: true });
    else if (change.type === "left") this.#decide({ type: "left", node, reason: change.reason });
  }

  #factsOf(member: Member): { taken?: string | undefined; isDraining: boolean; unreadable?: string } {
    try {
      if (!this.isLocal) readMessage(AgentName, member.name);
      const { info } = readNode(member);
      return { taken: this.isLocal ? undefined : this.#whyTaken(info), isDraining: info.isDraining === true };
    } catch (error) {
      return { isDraining: false, ...(this.isLocal ? {} : { unreadable: (error as Error).message }) };
    }
  }

  #decide(input: MembershipInput<Member>): void {
    for (const effect of this.#membership.handle(input, performance.now())) {
      switch (effect.type) {
        case "ask":
          if (this.isLocal) this.#decide({ type: "answered", node: effect.node, answer: usable, isThere: true });
          else void this.#ask(effect.node, effect.timeoutMs, effect.afterMs);
          break;
        case "used":
          if (this.#run !== undefined && !this.isLocal) this.#notice(`node '${effect.node.name}' has joined`);
          break;
        case "lost":
          this.#endWorkersOn(effect.node, effect.reason);
          break;
        case "wake":
          // Which node has that name by then, and what it says of itself.
          setTimeout(() => {
            const node = this.#options.plane.members("node").find(({ name }) => name === effect.node.name);
            if (node !== undefined) this.#decide({ type: "look-again", node });
          }, effect.afterMs).unref();
          break;
        case "notice":
          this.#notice(effect.text);
          break;
      }
    }
    this.#changed();
    if (input.type === "changed") this.#lookAround();
  }

  #endWorkersOn(member: Member, reason: string): void {
    this.#depots.delete(member.name);
    for (const worker of [...this.#workers.values()]) {
      if (worker.node !== member.name) continue;
      const failure = {
        code: "node.lost",
        message: `worker '${worker.worker}' is lost with node '${member.name}': ${reason}`,
        details: { node: member.name, incarnation: member.incarnation },
      };
      worker.settle(member.name, exitOf(worker, failure)); // ND1
    }
  }

  /** Not heard of by way of what it was told, though it beats: what it runs is lost, until it answers again (ND2). */
  #giveUp(node: Member, reason = "it beats, and does not answer"): void {
    this.#decide({ type: "given-up", node, reason, isThere: this.#isThere(node) });
  }

  #isThere({ name, incarnation }: Member): boolean {
    return this.#options.plane
      .members("node")
      .some((present) => present.name === name && present.incarnation === incarnation);
  }

  /** Asks a node whether it can be used. */
  async #ask(node: Member, timeoutMs: number, afterMs: number): Promise<void> {
    if (afterMs > 0) await delay(afterMs, undefined, { ref: false });
    const answer = await this.#admit(node, timeoutMs);
    if (this.#closed === undefined) this.#decide({ type: "answered", node, answer, isThere: this.#isThere(node) });
  }

  #notice(text: string): void {
    this.#options.onNotice?.(text);
  }

  /** A node can be used when its code is the runner's, and nothing of this run is left there (ND2). */
  async #admit(member: Member, timeoutMs: number): Promise<NodeAnswer> {
    const { plane } = this.#options;
    try {
      const difference = await nodeDifference(plane, member, await this.#code.look(), timeoutMs);
      if (difference.type === "other code") return { type: "cannot-be-used", why: difference.what };
      if (difference.type === "bearable") this.#notice(`node '${member.name}' is used, though ${difference.what}`);
      if (this.#run !== undefined && this.#announcement !== undefined) {
        const release = { run: this.#run.runId, session: this.#announcement.incarnation };
        await ask(plane, "node", member, "release", release, { timeoutMs });
      }
      return usable;
    } catch (error) {
      if (error instanceof TreadleError && error.code === "call.timeout") return { type: "silent" };
      if (error instanceof TreadleError && error.code === "node.lost") return { type: "absent" };
      return { type: "cannot-be-used", why: (error as Error).message };
    }
  }

  #whyTaken(info: NodeInfo): string | undefined {
    const { runId, cluster } = this.#options;
    return whyTaken(info, { runId, exclusive: cluster.exclusive });
  }

  #hasWorkersOn(node: string): boolean {
    return [...this.#workers.values()].some((worker) => worker.node === node);
  }

  /** Says of other runs that they are where this one is. */
  #lookAround(): void {
    if (this.#run === undefined || this.isLocal) return;
    const mine = [...this.#membership.used.values()].filter(({ name }) => this.#hasWorkersOn(name)).map(readNode);
    for (const line of this.#neighbours.look(mine, this.#run.runId)) this.#notice(line);
  }

  #beats(event: HeartbeatsEvent): void {
    if (event.session !== this.#announcement?.incarnation) return;
    for (const { worker, incarnation, busyMs, stack } of event.beats)
      this.#listener?.onHeartbeat(worker, incarnation, busyMs, stack);
  }

  /** While the control plane is away, nobody can be heard: silence counts for nothing. */
  #beatForAll(): void {
    if (this.#options.plane.isConnected) return;
    for (const { worker, incarnation } of this.#workers.values()) this.#listener?.onHeartbeat(worker, incarnation, 0);
  }

  #changed(): void {
    for (const listener of this.#listeners) listener();
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

const usable: NodeAnswer = { type: "can-be-used" };

const keyOf = (worker: string, incarnation: number): string => `${worker}#${incarnation}`;

const readNode = ({ name, body }: Member) => ({ name, info: readMessage(NodeInfo, body) });
