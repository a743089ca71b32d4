/**
 * The nodes of a run, as its runner sees them: which are there, with which devices, and what runs on each.
 *
 * Owner of: the run's announcement, and the worker processes that were started, wherever they are. Its commands go over
 * the control plane, also when the only node is this process itself.
 *
 * ND1 every process that was started ends once: by its node's report, or with its node.
 * ND2 a node that was lost is used again only after it has said that nothing of this run is left there (L3).
 * ND3 the end of a process counts only from the very process that is its node, and its beats and lines only from holders of
 *    the run's token, as new ones (EV1, EV2).
 */
import { hostname } from "node:os";
import { setTimeout as delay } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import {
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
  type RequestOf,
  type RunInfo,
  type RunStatus,
  type RuntimeConfig,
  readMessage,
  type SpawnCommand,
  TreadleError,
  toErrorRecord,
} from "@treadle/contracts";
import { awaitNodes } from "@treadle/core";
import { type Code, ProjectCode } from "../../node/code-hash.ts";
import { EventChecker } from "../../node/event-proof.ts";
import { nodeDifference } from "./code-of-nodes.ts";
import { type NodeDevices, shareOutDevices } from "./devices.ts";
import { hasGone } from "./gone-nodes.ts";
import { type LabelledNode, type NodeLaunch, nodeLaunch } from "./node-groups.ts";
import { exitOf, type LaunchedWorker, RemoteWorker } from "./remote-worker.ts";
import { KeptRecord } from "./run-record.ts";
import { Neighbours, whyTaken } from "./shared-nodes.ts";

export type LaunchRequest = Pick<SpawnCommand, "boot" | "modulePath" | "env" | "memoryLimitMiB" | "interpreter">;

export type NodesListener = {
  readonly onHeartbeat: (worker: string, incarnation: number, busyMs: number, stack?: string) => void;
  readonly onLog: (worker: string, level: string, line: string) => void;
  /** Answers what anybody may ask of this runner. */
  readonly onStatus: () => RunStatus;
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

/**
 * What was said while a network was cut has gone, and asking again does nothing twice: so it is asked again soon, and a node
 * that beats and has not answered in all of that time hangs.
 */
const commandTimeoutMs = 5000;
const maxAsks = 5;
const spawnTimeoutMs = 5000;
const maxSpawnAsks = 8;
/** A node may have much to hash and many processes to end: whoever asks again waits longer each time. */
const firstSlowMs = 5000;
const slowCommandMs = 60_000;
const releaseTimeoutMs = 15_000;
const beatWhileCutOffMs = 1000;
/** Until a node that nobody serves is asked again. */
const absentMs = 500;
/** Longer than a node takes to say of itself what has changed. */
const yieldMs = 1000;

export class Nodes {
  readonly record: KeptRecord;
  readonly #options: NodesOptions;
  readonly #devices: NodeDevices;
  /** those that run the runner's code and have nothing of this run that it does not know of */
  readonly #usable = new Map<string, Member>();
  readonly #workers = new Map<string, RemoteWorker>();
  /** node to the addresses where large items are kept there for processes of other nodes */
  readonly #depots = new Map<string, readonly string[]>();
  /** those that are being asked whether they can be used */
  readonly #asked = new Map<string, { readonly node: string; readonly sinceMs: number }>();
  /** those that cannot be used, as long as they are what they are, and why */
  readonly #refused = new Map<string, string>();
  /** those of them that can be once other runs are gone from there */
  readonly #taken = new Set<string>();
  readonly #neighbours = new Neighbours();
  readonly #doubted = new Set<string>();
  readonly #waiting = new Set<() => void>();
  readonly #ends: (() => void)[] = [];
  #code: Promise<Code> | undefined;
  #announcement: Announcement | undefined;
  #run: OpenRun | undefined;
  #info: RunInfo | undefined;
  #listener: NodesListener | undefined;
  #answers: () => CommandHandlers<"run"> = () => {
    throw new TreadleError("node.unavailable", "the run is starting; ask again in a moment");
  };
  #closed: Promise<void> | undefined;
  #revision = 0;
  readonly #listeners = new Set<() => void>();

  constructor(options: NodesOptions) {
    this.#options = options;
    this.#devices = shareOutDevices(options.cluster);
    const { plane } = options;
    this.record = new KeptRecord(plane, (text) => this.#notice(text));
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
    const { minNodes, nodeWaitMs } = cluster;
    const deadlineMs = performance.now() + nodeWaitMs;
    for (;;) {
      for (const member of plane.members("node")) this.#consider(member);
      const asked = [...this.#asked.values()];
      const decision = awaitNodes({ minNodes, numUsable: this.#usable.size, asked, deadlineMs }, performance.now());
      if (decision.type === "go") {
        for (const node of decision.without)
          this.#notice(`begins without node '${node}', which is there and has not answered`);
        return;
      }
      if (decision.type === "fail") break;
      await this.#change(Math.min(decision.untilMs - performance.now(), 500));
    }
    const others = plane.members("node").filter(({ name }) => !this.#usable.has(name));
    const why = others
      .map(({ name, incarnation }) => {
        if ([...this.#asked.values()].some(({ node }) => node === name)) return `'${name}' does not answer`;
        return `'${name}' cannot be used: ${this.#refused.get(keyOf(name, incarnation)) ?? "it has just come"}`;
      })
      .join(", ");
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

  get #staying() {
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

  get present(): string[] {
    return [...this.#usable.keys()];
  }

  /** Told whenever what `present` or `places` say may have changed. */
  onChanged(listener: () => void): void {
    this.#listeners.add(listener);
  }

  /** By node. */
  get depots(): ReadonlyMap<string, readonly string[]> {
    return this.#depots;
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
      const answer = answering("run", {
        exited: (exited, sender) => this.#answers().exited(exited, sender),
        status: () => this.#answers().status({}),
        stop: () => this.#answers().stop({}),
      });
      this.#announcement = await this.#options.plane.announce("run", runId, this.#info, answer);
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
        return this.#workers.get(keyOf(report.worker, report.incarnation))?.settle(node, report);
      },
      status: listener.onStatus,
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
    const member = this.#usable.get(node);
    try {
      if (member === undefined) throw new TreadleError("node.lost", `node '${node}' is not there`);
      const spawned = this.#spawn(member, request);
      spawned.catch(() => {});
      // With its node it has ended, whatever becomes of the question.
      worker.pid = await Promise.race([spawned, worker.exited.then(() => undefined)]);
    } catch (error) {
      const isTaken = error instanceof TreadleError && error.details["takenBy"] !== undefined;
      const isOther = error instanceof TreadleError && error.details["otherCode"] === true;
      if (member !== undefined && isTaken) this.#yield(member, error.message); // another run was faster
      if (member !== undefined && isOther) {
        this.#lose(member, error.message);
        this.#refuse(member, error.message);
      }
      if (member !== undefined && error instanceof TreadleError && error.code === "node.lost") {
        this.#forsake(member, error.message); // it has gone before its lease is over, or hangs
      }
      if (!isTaken && !isOther && (!(error instanceof TreadleError) || error.disposition !== "retryable")) {
        this.#workers.delete(keyOf(name, boot.incarnation));
        throw error;
      }
      worker.settle(node, exitOf(worker, toErrorRecord(error)));
    }
    return worker;
  }

  /** Something on this node has ended without a word: so may have its agent, and with it all that runs there. */
  async doubt(node: string): Promise<void> {
    const member = this.#usable.get(node);
    if (member === undefined || this.isLocal || this.#doubted.has(node) || this.#closed !== undefined) return;
    this.#doubted.add(node);
    const gone = await hasGone(this.#options.plane, member);
    this.#doubted.delete(node);
    if (gone) this.#forsake(member, "its agent has ended");
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
            ask(plane, "node", member, "release", release, { timeoutMs: releaseTimeoutMs }).catch(() => {}),
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
    const { plane, projectRoot, cluster } = this.#options;
    const run = this.#run as OpenRun;
    const body: SpawnCommand = {
      ...request,
      ...(cluster.exclusive ? { exclusive: true } : {}),
      run: run.runId,
      session: this.#announcement?.incarnation ?? 0,
      segmentPrefix: run.segmentPrefix,
      projectRoot: pathToFileURL(`${projectRoot}/`).href,
      codeHash: (await this.#ownCode()).hash,
    };
    for (let attempt = 0; ; attempt += plane.isConnected ? 1 : 0) {
      try {
        const reply = await ask(plane, "node", member, "spawn", body, { timeoutMs: spawnTimeoutMs });
        const { pid, depot } = reply;
        if (depot && this.#usable.get(member.name) === member) this.#depots.set(member.name, depot);
        return pid;
      } catch (error) {
        // It may have been done, or not: doing it again does it once.
        if (!(error instanceof TreadleError) || error.code !== "call.timeout") throw error;
        if (this.isLocal) continue; // it is this process, which is only slow
        if (attempt + 1 >= maxSpawnAsks || this.#usable.get(member.name)?.incarnation !== member.incarnation)
          throw new TreadleError("node.lost", error.message, { cause: error });
      }
    }
  }

  #tell<V extends "end" | "stop">(
    node: string,
    verb: V,
    body: Omit<RequestOf<Commands["node"], V>, "run" | "session">,
  ): void {
    const member = this.#usable.get(node);
    if (member === undefined || this.#run === undefined) return; // it is lost, and what it runs with it
    const run = { run: this.#run.runId, session: this.#announcement?.incarnation ?? 0 };
    const command = { ...run, ...body } as RequestOf<Commands["node"], V>;
    const tell = (attempt: number): void => {
      ask(this.#options.plane, "node", member, verb, command, { timeoutMs: commandTimeoutMs }).catch(
        (error: unknown) => {
          if (error instanceof TreadleError && error.code !== "call.timeout") return;
          if (this.#usable.get(node)?.incarnation !== member.incarnation) return;
          if (!this.#options.plane.isConnected || this.isLocal) tell(attempt);
          else if (attempt < maxAsks) tell(attempt + 1);
          else this.#forsake(member);
        },
      );
    };
    tell(0);
  }

  #onNode(change: MembershipChange): void {
    const { member } = change;
    if (change.type === "changed") {
      const isKnown = this.#usable.get(member.name)?.incarnation === member.incarnation;
      if (!NodeInfo.safeParse(member.body).success) return;
      if (isKnown) this.#renew(member);
      else this.#reconsider(member);
      return;
    }
    if (change.type === "joined") {
      this.#forgive(member);
      this.#consider(member);
      return;
    }
    if (change.type === "left") this.#lose(member, change.reason);
  }

  /** What a node says of itself has changed. */
  #renew(member: Member): void {
    const before = this.#usable.get(member.name);
    const wasDraining = before !== undefined && readNode(before).info.isDraining === true;
    const why = this.#whyTaken(member);
    if (why !== undefined && !this.#hasWorkersOn(member.name)) {
      this.#yield(member, why);
      return;
    }
    this.#usable.set(member.name, member);
    this.#changed();
    this.#lookAround();
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
      worker.settle(member.name, exitOf(worker, failure)); // ND1
    }
    this.#changed();
  }

  /** Not heard of by way of what it was told, though it beats: what it runs is lost, until it answers again (ND2). */
  #forsake(member: Member, reason = "it beats, and does not answer"): void {
    this.#lose(member, reason);
    if (this.#isThere(member)) this.#consider(member);
  }

  #isThere({ name, incarnation }: Member): boolean {
    return this.#options.plane
      .members("node")
      .some((present) => present.name === name && present.incarnation === incarnation);
  }

  /** Asks a node whether it can be used, until it answers. */
  #consider(member: Member): void {
    const key = keyOf(member.name, member.incarnation);
    const isKnown = this.#usable.get(member.name)?.incarnation === member.incarnation;
    if (isKnown || this.#asked.has(key) || this.#refused.has(key)) return;
    this.#asked.set(key, { node: member.name, sinceMs: performance.now() });
    void (async () => {
      let timeoutMs = firstSlowMs;
      let answer = await this.#admit(member, timeoutMs);
      while ((answer === "silent" || answer === "absent") && this.#isThere(member) && !this.#closed) {
        if (answer === "silent") this.#notice(`node '${member.name}' beats, and does not answer: it is asked again`);
        else await delay(absentMs, undefined, { ref: false });
        timeoutMs = Math.min(2 * timeoutMs, slowCommandMs);
        answer = await this.#admit(member, timeoutMs);
      }
      this.#asked.delete(key);
      this.#changed();
    })();
  }

  #notice(text: string): void {
    this.#options.onNotice?.(text);
  }

  /** Takes a node into use when its code is the runner's, and nothing of this run is left there (ND2). */
  async #admit(member: Member, timeoutMs: number): Promise<"used" | "refused" | "silent" | "absent" | "gone"> {
    const { plane } = this.#options;
    if (this.isLocal) {
      this.#usable.set(member.name, member);
      return "used";
    }
    try {
      readMessage(NodeInfo, member.body);
      const taken = this.#whyTaken(member);
      if (taken !== undefined) return this.#refuse(member, taken, true);
      const difference = await nodeDifference(plane, member, await this.#ownCode(), timeoutMs);
      if (difference.type === "other code") return this.#refuse(member, difference.what);
      if (difference.type === "bearable") this.#notice(`node '${member.name}' is used, though ${difference.what}`);
      if (this.#run !== undefined && this.#announcement !== undefined) {
        const release = { run: this.#run.runId, session: this.#announcement.incarnation };
        await ask(plane, "node", member, "release", release, { timeoutMs });
      }
    } catch (error) {
      if (error instanceof TreadleError && error.code === "call.timeout") return "silent";
      if (error instanceof TreadleError && error.code === "node.lost") return "absent";
      return this.#refuse(member, (error as Error).message);
    }
    if (!this.#isThere(member) || this.#closed) return "gone";
    this.#usable.set(member.name, member);
    this.#revision++;
    if (this.#run !== undefined) this.#notice(`node '${member.name}' has joined`);
    this.#changed();
    return "used";
  }

  #refuse(member: Member, why: string, isTaken = false): "refused" {
    const key = keyOf(member.name, member.incarnation);
    this.#refused.set(key, why);
    if (isTaken) this.#taken.add(key);
    this.#notice(`node '${member.name}' is not used: ${why}`);
    return "refused";
  }

  #forgive({ name, incarnation }: Member): void {
    this.#refused.delete(keyOf(name, incarnation));
    this.#taken.delete(keyOf(name, incarnation));
  }

  /** To another run, until that one is gone from there. */
  #yield(member: Member, why: string): void {
    this.#lose(member, why);
    this.#refuse(member, why, true);
    // What it says of itself may be older than what it answers.
    setTimeout(() => this.#reconsider(member), yieldMs).unref();
  }

  #reconsider({ name, incarnation }: Member): void {
    const member = this.#options.plane.members("node").find((each) => each.name === name);
    if (member?.incarnation !== incarnation || !this.#taken.has(keyOf(name, incarnation))) return;
    if (this.#whyTaken(member) !== undefined) return;
    this.#forgive(member);
    this.#consider(member);
  }

  #whyTaken(member: Member): string | undefined {
    const { runId, cluster } = this.#options;
    return whyTaken(readNode(member).info, { runId, exclusive: cluster.exclusive });
  }

  #hasWorkersOn(node: string): boolean {
    return [...this.#workers.values()].some((worker) => worker.node === node);
  }

  /** Says of other runs that they are where this one is. */
  #lookAround(): void {
    if (this.#run === undefined || this.isLocal) return;
    const mine = [...this.#usable.values()].filter(({ name }) => this.#hasWorkersOn(name)).map(readNode);
    for (const line of this.#neighbours.look(mine, this.#run.runId)) this.#notice(line);
  }

  #ownCode(): Promise<Code> {
    this.#code ??= this.isLocal
      ? Promise.resolve({ hash: "", files: new Map(), outside: [] })
      : this.#lookAtOwnCode(this.#options.projectRoot);
    return this.#code;
  }

  async #lookAtOwnCode(projectRoot: string): Promise<Code> {
    const code = await new ProjectCode(projectRoot).current();
    for (const link of code.outside)
      this.#notice(`'${link}' leads out of the project '${projectRoot}': code there is not compared between nodes`);
    return code;
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

const keyOf = (worker: string, incarnation: number): string => `${worker}#${incarnation}`;

const readNode = ({ name, body }: Member) => ({ name, info: readMessage(NodeInfo, body) });
