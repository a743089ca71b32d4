/**
 * A node of the cluster: announces itself, and does what runners ask of it, each in a session of its own.
 *
 * Owner of: the announcement, the sessions, the accelerators and custom devices that each holds, exits not yet reported.
 * It talks to runners over the control plane alone.
 *
 * NS1 a device that is not a CPU slot is held by one run at a time, and by the newest runner of a run.
 * NS2 when a runner leaves, or this node is cut off from the control plane for longer than its limit, its workers end.
 * NS3 a worker's exit is reported until its runner has heard it, or is gone.
 * NS4 where the runner is elsewhere, only code that hashes as the runner's is run, at each start, in no other way than this
 *    node's own configuration allows, and nothing outside of the run's own names is touched.
 * NS5 of two agents of one name the older stays, as long as it is heard, and of several that start before they hear one another
 *    one (NC1); where keys are given, only their holders count, and
 *    only while they prove that they are there.
 * NS6 beside a run that wants the node for itself no other has workers here.
 */
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import {
  type Announcement,
  answering,
  ask,
  type CommandHandlers,
  type ControlPlane,
  type ExitReport,
  type LinksConfig,
  type Member,
  type MembershipChange,
  type NodeInfo,
  publishTo,
  runPrefix,
  type SpawnCommand,
  type SpawnReply,
  TreadleError,
  type WorkerPermissions,
} from "@treadle/contracts";
import { kindOf } from "@treadle/core";
import { inertNodeSpans, type NodeRegistry, type NodeSpans, type Span } from "@treadle/observe";
import type { Relay, RelayOptions } from "@treadle/transport";
import { type Code, codeDifference, ProjectCode } from "./code-hash.ts";
import { EventProver } from "./event-proof.ts";
import { reportUntilHeard, unseenMs } from "./exit-report.ts";
import { openPayloadDepot } from "./payload-depot.ts";
import { localPorts } from "./relay-addresses.ts";
import { RunSession, type SessionOptions } from "./run-session.ts";
import { SpareHosts } from "./spare-hosts.ts";
import { keepSwept } from "./sweeping.ts";
import { codeVersions } from "./treadle-code.ts";
import { checkWorkerStart, rightsOf } from "./worker-permissions.ts";

/** A node on the runner's own machine shares its folders; one on a machine of its own has links to the others. */
export type NodePlace =
  | { readonly kind: "runner"; readonly socketFolder: () => string; readonly logs: string }
  | {
      readonly kind: "machine";
      readonly links: LinksConfig;
      readonly permissions: WorkerPermissions;
      readonly openFolder: (segmentPrefix: string) => Promise<{ readonly path: string; close(): Promise<void> }>;
      /** reaches, by way of NATS, processes that cannot be dialled */
      readonly openRelay?: (options: Omit<RelayOptions, "nats">) => Promise<Relay>;
      /** time without the control plane after which workers are ended */
      readonly cutOffMs: number;
      /** processes that are ready to become workers, at most; default none */
      readonly spareWorkers?: number | undefined;
    };

/** What the workers of a node do, for its metrics. */
export type NodeObserver = Pick<NodeRegistry, "workers" | "beat" | "exited">;

export type NodeServiceOptions = {
  readonly name: string;
  readonly plane: ControlPlane;
  readonly info: Omit<NodeInfo, "workers" | "isDraining" | "exclusiveTo">;
  readonly projectRoot: string;
  readonly place: NodePlace;
  /** whoever measures this node */
  readonly observer?: NodeObserver | undefined;
  /** what this node does, for a collector of OpenTelemetry */
  readonly spans?: NodeSpans | undefined;
  /** what happens here, for whoever watches this process */
  readonly onNotice?: (text: string) => void;
};

/** Why this node ends workers, where nobody has asked for it. */
const notHeard = "which did not hear the runner";
const cutOff = "which was cut off from the control plane";

const drainLookMs = 100;
const updateDelayMs = 300;
const tickMs = 500;
const reportTimeoutMs = 3000;
/** Paths and hashes of so many take less than half of what a message may. */
const filesAPage = 2000;

export class NodeService {
  readonly name: string;
  readonly #options: NodeServiceOptions;
  readonly #spans: NodeSpans;
  readonly #code: ProjectCode;
  readonly #spares: SpareHosts | undefined;
  readonly #sessions = new Map<string, Promise<RunSession>>();
  /** device to run */
  readonly #held = new Map<string, string>();
  /** run to the code that it was first started with here */
  readonly #begunWith = new Map<string, Code>();
  /** the run that has this node for itself */
  #exclusiveTo: string | undefined;
  #announcement: Announcement | undefined;
  #cutOff: NodeJS.Timeout | undefined;
  #ticker: NodeJS.Timeout | undefined;
  #updating: NodeJS.Timeout | undefined;
  #isClosing = false;
  #isDraining = false;
  readonly #ends: (() => void | Promise<void>)[] = [];

  constructor(options: NodeServiceOptions) {
    this.#options = options;
    this.#code = new ProjectCode(options.projectRoot);
    this.#spans = options.spans ?? inertNodeSpans;
    this.name = options.name;
    const numSpares = options.place.kind === "machine" ? (options.place.spareWorkers ?? 0) : 0;
    if (numSpares > 0) this.#spares = new SpareHosts({ node: this.name, count: numSpares });
  }

  get incarnation(): number {
    return this.#announcement?.incarnation ?? 0;
  }

  /**
   * Joins the cluster. Rejects with `node.name-taken` while another agent of this name is heard. `onReplaced`: one has come
   * all the same, while this one was silent; this one has ended its workers.
   */
  async start(onReplaced: () => void = () => {}): Promise<void> {
    const { plane, place } = this.#options;
    using joining = this.#spans.span("join", "call");
    const older = plane.members("node").find(({ name, isUntrusted }) => name === this.name && !isUntrusted);
    if (older !== undefined && (await plane.provesPresence(older))) throw nameTaken(this.name); // NS5
    this.#ends.push(
      keepSwept(),
      plane.onMember("run", (change) => this.#onRun(change)),
    );
    const announcement = await plane.announce("node", this.name, this.#info([]), answering("node", this.#answers));
    this.#announcement = announcement;
    joining.set({ incarnation: announcement.incarnation });
    announcement.onReplaced(() => {
      this.#spans.span("replaced by another agent", "failure").end();
      void this.#closeSessions(() => true).then(onReplaced);
    });
    if (place.kind === "runner") return;
    let away: Span | undefined;
    plane.onConnection((isConnected) => {
      clearTimeout(this.#cutOff);
      away?.end();
      if (isConnected || this.#isClosing) return;
      away = this.#spans.span("control plane away", "failure");
      this.#cutOff = setTimeout(() => {
        this.#notice(`cut off from the control plane for ${place.cutOffMs} ms: ends its workers`);
        away?.set({ endsWorkersAfterMs: place.cutOffMs });
        void this.#closeSessions(() => true, cutOff); // NS2
      }, place.cutOffMs);
    });
    this.#ticker = setInterval(() => this.#dropUnseen(), tickMs);
  }

  /**
   * Tells runs to take their workers away between two steps; resolves with whether they did within the limit. What is left
   * then ends with `close`, and what it was doing is done again elsewhere.
   */
  async drain(limitMs: number): Promise<boolean> {
    this.#isDraining = true;
    using draining = this.#spans.span("drain", "call", { attributes: { limitMs } });
    const deadlineMs = performance.now() + limitMs;
    for (;;) {
      const sessions = await this.#openSessions();
      const numWorkers = sessions.reduce((sum, { workers }) => sum + workers.length, 0);
      draining.set({ workersLeft: numWorkers });
      if (numWorkers === 0) return true;
      if (performance.now() > deadlineMs || !this.#options.plane.isConnected) return false;
      this.#announceSoon();
      await delay(drainLookMs);
    }
  }

  /** Leaves, and ends every worker; whoever runs something here is told that they are gone. */
  async close(reason: string): Promise<void> {
    this.#isClosing = true;
    using _ = this.#spans.span("leave", "call", { attributes: { reason } });
    clearTimeout(this.#cutOff);
    clearInterval(this.#ticker);
    clearTimeout(this.#updating);
    await this.#announcement?.withdraw(reason).catch(() => {}); // cut off: silence says the same
    await Promise.all(this.#ends.map((end) => end()));
    await this.#closeSessions(() => true);
    this.#spares?.close();
  }

  get #answers(): CommandHandlers<"node"> {
    return {
      ping: () => undefined,
      check: async () => {
        using _ = this.#spans.span("check code", "call");
        return { codeHash: (await this.#code.current()).hash, versions: codeVersions };
      },
      files: async ({ after }) => {
        const all = [...(await this.#code.current()).files];
        const from = all.findIndex(([path]) => path > after);
        const files = from < 0 ? [] : all.slice(from, from + filesAPage);
        return { files, isLast: from < 0 || from + filesAPage >= all.length };
      },
      spawn: (command) => this.#spawn(command),
      end: async (command) => ({ isHere: (await (await this.#sessionOf(command))?.end(command)) ?? false }),
      stop: async (command) => ({ isHere: (await (await this.#sessionOf(command))?.stop(command)) ?? false }),
      release: ({ run, session }) => this.#closeSessions((each) => each.run === run && each.session <= session),
    };
  }

  async #spawn(command: SpawnCommand): Promise<SpawnReply> {
    this.#checkStart(command); // NS4
    this.#takeAlone(command); // NS6
    const isOpen = this.#sessions.has(command.run);
    const session = await this.#openSession(command);
    if (isOpen && this.#options.place.kind === "machine") await this.#checkCode(command); // NS4
    // In one turn, since a session frees what is held when it closes, and nobody would after that.
    session.checkOpen();
    this.#hold(command);
    const started = await session.spawn(command);
    this.#announceSoon();
    return started;
  }

  async #openSession(command: SpawnCommand): Promise<RunSession> {
    const { run, session } = command;
    for (;;) {
      const present = await this.#sessions.get(run);
      if (this.#isClosing) throw new TreadleError("node.lost", `node '${this.name}' is leaving the cluster`);
      if (present?.session === session) return present;
      if (present !== undefined && present.session > session) {
        throw new TreadleError("node.lost", `run '${run}' has a newer runner; this one may start nothing any more`);
      }
      if (present !== undefined) {
        await this.#closeSessions((each) => each === present);
        this.#takeAlone(command); // NS6: with the session of the older runner its claim has gone
      }
      if (this.#sessions.has(run)) continue; // another command was faster
      const opening = this.#makeSession(command);
      this.#sessions.set(run, opening);
      opening.catch(() => this.#forget(run));
      return opening;
    }
  }

  async #makeSession(command: SpawnCommand): Promise<RunSession> {
    const { plane, projectRoot, place } = this.#options;
    const { run, session } = command;
    using _ = this.#spans.span("open run", "call", { run, attributes: { session } });
    if (place.kind === "machine") await this.#checkCode(command); // NS4
    const isHome = place.kind === "runner";
    // No node's is the beginning of another's: what begins so is removed.
    const segmentPrefix = isHome ? command.segmentPrefix : `${command.segmentPrefix}${this.name}.-`;
    const { runId, token } = command.boot;
    const serving = { runId, token, node: this.name, segmentPrefix, spans: this.#spans };
    const depot = isHome
      ? undefined
      : await openPayloadDepot({ ...serving, links: place.links }).catch((error) => this.#cannotServe(run, error));
    this.#notice(`opens run '${run}'`);
    const beats = new EventProver({ topic: "heartbeats", run, token });
    const lines = new EventProver({ topic: "log", run, token });
    // The runner made the one that it shares, and removes it.
    const folder = isHome
      ? { path: place.socketFolder(), close: async () => {} }
      : await place.openFolder(segmentPrefix).catch(async (error: unknown) => {
          await depot?.close();
          return this.#cannotServe(run, error);
        });
    const opened: RunSession = new RunSession({
      run,
      session,
      node: this.name,
      projectRoot,
      segmentPrefix,
      folder,
      relay:
        isHome || depot === undefined ? undefined : this.#openRelay({ runId, token }, folder.path, depot.addresses),
      links: isHome ? undefined : place.links,
      logs: isHome ? place.logs : undefined,
      rights: isHome ? undefined : rightsOf(place.permissions, this.name, projectRoot),
      spares: this.#spares,
      depot,
      spans: this.#spans,
      onExit: (report) => {
        const how = report.failure !== undefined ? "failure" : report.signal !== null ? "signal" : "exit";
        this.#options.observer?.exited(run, report.worker, how);
        this.#announceSoon();
        void this.#reportExit(opened, report);
      },
      onBeats: (event) => {
        for (const beat of event.beats) this.#options.observer?.beat(run, beat);
        publishTo(plane, "heartbeats", run, beats.prove(event));
      },
      onLog: (event) => publishTo(plane, "log", run, lines.prove(event)),
      onNotice: (text) => this.#notice(text),
    });
    return opened;
  }

  /** Not where links are encrypted: what is relayed shows no certificate. Nobody waits for it until somebody needs it. */
  #openRelay(
    run: Pick<RelayOptions, "runId" | "token">,
    folder: string,
    depot: readonly string[],
  ): SessionOptions["relay"] {
    const { place } = this.#options;
    if (place.kind !== "machine" || place.links.tls !== undefined || place.openRelay === undefined) return undefined;
    const path = join(folder, "relay");
    const ports = localPorts({ depot }, place.links.bind);
    const opening = place.openRelay({ ...run, member: this.name, path, ports });
    opening.catch((error: Error) => this.#notice(`processes that cannot be dialled are not reached: ${error.message}`));
    return {
      path,
      close: () =>
        opening.then(
          (relay) => relay.close(),
          () => {},
        ),
    };
  }

  #forget(run: string): void {
    this.#sessions.delete(run);
    this.#begunWith.delete(run);
    if (this.#exclusiveTo === run) this.#exclusiveTo = undefined;
  }

  #checkStart(command: SpawnCommand): void {
    const { place } = this.#options;
    const { run, boot, segmentPrefix } = command;
    if (boot.runId !== run || !segmentPrefix.startsWith(runPrefix(run))) {
      throw new TreadleError(
        "node.forbidden",
        `a command for run '${run}' names run '${boot.runId}' and shared memory '${segmentPrefix}'; both must be the run's own`,
        { origin: { node: this.name } },
      );
    }
    if (place.kind === "machine") checkWorkerStart(command, place.permissions, this.name);
  }

  /** What its machine refuses for a run is no fault of the run, which goes on without this node. */
  #cannotServe(run: string, error: unknown): never {
    if (error instanceof TreadleError) throw error;
    throw new TreadleError(
      "node.unavailable",
      `node '${this.name}' cannot serve run '${run}': ${(error as Error).message}; its folder for temporary files is '${tmpdir()}'`,
      { origin: { node: this.name }, details: { refuses: true }, cause: error },
    );
  }

  async #checkCode({ run, codeHash, modulePath }: SpawnCommand): Promise<void> {
    const { projectRoot } = this.#options;
    const code = await this.#code.current();
    const origin = { node: this.name };
    if (code.hash !== codeHash) {
      const before = this.#begunWith.get(run);
      const since = before?.hash === codeHash ? codeDifference(before.files, code.files) : undefined;
      throw new TreadleError(
        "node.unavailable",
        since === undefined
          ? `the code in '${projectRoot}' of node '${this.name}' is not the runner's; bring both to the same version`
          : `the code in '${projectRoot}' of node '${this.name}' has changed since run '${run}' began there: ${since}; put it back, or resume the run with the new code everywhere`,
        { origin, details: { refuses: true } },
      );
    }
    this.#begunWith.set(run, code);
    if (code.files.has(modulePath) || modulePath.split("/").includes("node_modules")) return;
    throw new TreadleError(
      "worker.load-failed",
      `module '${modulePath}' of project '${projectRoot}' is not there, or in a folder whose code is not compared between nodes (hidden ones, 'runs', 'coverage'); keep workers' modules elsewhere`,
      { origin },
    );
  }

  /** NS1. */
  #hold({ run, boot }: SpawnCommand): void {
    const devices = boot.devices.filter((device) => device.startsWith(`${this.name}/`) && kindOf(device) !== "cpu");
    for (const device of devices) {
      const holder = this.#held.get(device);
      if (holder === undefined || holder === run) continue;
      throw new TreadleError(
        "node.unavailable",
        `device '${device}' of node '${this.name}' is held by run '${holder}'; wait for its end, or give this run other devices`,
        { origin: { node: this.name } },
      );
    }
    for (const device of devices) this.#held.set(device, run);
  }

  /** NS6. Before anything is waited for, so of two commands the first decides. */
  #takeAlone({ run, exclusive = false }: SpawnCommand): void {
    const other =
      this.#exclusiveTo ?? (exclusive ? [...this.#sessions.keys()].find((each) => each !== run) : undefined);
    if (other !== undefined && other !== run) {
      throw new TreadleError(
        "node.unavailable",
        exclusive
          ? `run '${other}' is on node '${this.name}', and cluster.exclusive of run '${run}' wants nodes without others; wait for its end, or give one of them other nodes`
          : `run '${other}' has node '${this.name}' for itself (cluster.exclusive); wait for its end, or give run '${run}' other nodes`,
        { origin: { node: this.name }, details: { takenBy: other } },
      );
    }
    if (exclusive) this.#exclusiveTo = run;
  }

  async #sessionOf(command: { readonly run: string; readonly session: number }): Promise<RunSession | undefined> {
    const present = await this.#sessions.get(command.run)?.catch(() => undefined);
    return present?.session === command.session ? present : undefined;
  }

  /** `since`: why this node does so, where nobody has asked for it. */
  async #closeSessions(which: (session: RunSession) => boolean, since?: string): Promise<void> {
    await Promise.all(
      [...this.#sessions].map(async ([run, opening]) => {
        const session = await opening.catch(() => undefined);
        if (session === undefined || !which(session)) return;
        await session.close(since);
        if (this.#sessions.get(run) !== opening) return; // whoever else has closed it has done the rest
        // Its devices are free only now that nobody uses them.
        for (const [device, holder] of this.#held) if (holder === run) this.#held.delete(device);
        this.#forget(run);
        if (this.#sessions.size === 0) this.#spares?.rest();
        this.#notice(`has ended run '${run}' here`);
        this.#announceSoon();
      }),
    );
  }

  /** Without those that could not be opened. */
  async #openSessions(): Promise<RunSession[]> {
    const opened = await Promise.allSettled(this.#sessions.values());
    return opened.flatMap((each) => (each.status === "fulfilled" ? [each.value] : []));
  }

  #onRun(change: MembershipChange): void {
    if (change.type !== "left") return;
    const { name, incarnation } = change.member;
    const isOver = (session: RunSession) => session.run === name && session.session <= incarnation;
    void this.#closeSessions(isOver, notHeard); // NS2
  }

  #dropUnseen(): void {
    if (!this.#options.plane.isConnected) return;
    const present = this.#options.plane.members("run");
    const isGone = (session: RunSession) =>
      performance.now() - session.openedMs > unseenMs &&
      !present.some(({ name, incarnation }) => name === session.run && incarnation === session.session);
    void this.#closeSessions(isGone, notHeard);
  }

  /** NS3. */
  #reportExit(of: RunSession, report: ExitReport): Promise<void> {
    const { plane } = this.#options;
    const { run, session } = of;
    const runner: Member = { kind: "run", name: run, incarnation: session, body: undefined };
    const isThere = () => plane.members("run").some(({ name, incarnation }) => name === run && incarnation === session);
    return reportUntilHeard({
      send: () => ask(plane, "run", runner, "exited", { node: this.name, report }, { timeoutMs: reportTimeoutMs }),
      isThere: () => !of.isClosed || isThere(),
      isOver: () => this.#isClosing, // leaving says the same
      now: () => performance.now(),
      pause: (ms) => delay(ms),
    });
  }

  #announceSoon(): void {
    if (this.#updating !== undefined || this.#isClosing) return;
    this.#updating = setTimeout(async () => {
      this.#updating = undefined;
      const sessions = await this.#openSessions();
      await this.#announcement?.update(this.#info(sessions)).catch(() => {}); // the next one tries again
    }, updateDelayMs);
    this.#updating.unref();
  }

  #info(sessions: readonly RunSession[]): NodeInfo {
    const workers = Object.fromEntries(sessions.map((session) => [session.run, session.workers.sort()]));
    this.#options.observer?.workers(workers);
    const exclusive = this.#exclusiveTo === undefined ? {} : { exclusiveTo: this.#exclusiveTo };
    return { ...this.#options.info, workers, isDraining: this.#isDraining, ...exclusive };
  }

  #notice(text: string): void {
    this.#options.onNotice?.(text);
  }
}

export function nameTaken(name: string): TreadleError {
  return new TreadleError(
    "node.name-taken",
    `a node agent called '${name}' is in the cluster already, and stays; give each a name of its own with --name`,
    { origin: { node: name } },
  );
}
