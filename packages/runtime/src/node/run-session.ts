/**
 * What one runner has on one node: its worker processes, their folder, and what is to be told of them.
 *
 * Owner of: the node agent of that runner, the folder of sockets, the names of shared memory, the beats and lines that
 * wait to be sent.
 *
 * RU1 a command that arrives twice acts once, also when its process has ended: processes are known by worker and incarnation,
 *    and one that was told to end before it was started is not started.
 * RU2 when the session has closed, no process, socket and shared memory of it is left here (S4).
 */
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import {
  type EndCommand,
  type ExitReport,
  type HeartbeatsEvent,
  type LinksConfig,
  type LogEvent,
  type SpawnCommand,
  type SpawnReply,
  type StopCommand,
  TreadleError,
  type WorkerBoot,
} from "@treadle/contracts";
import type { ProgramRights } from "@treadle/contracts/program-rights";
import type { NodeSpans } from "@treadle/observe";
import { removeSegments } from "@treadle/transport";
import type { z } from "zod";
import { eventParts } from "./event-parts.ts";
import { NodeAgent, type WorkerProcess } from "./node-agent.ts";
import type { PayloadDepot } from "./payload-depot.ts";
import type { SpareHosts } from "./spare-hosts.ts";
import { keyOf, WorkerSpans } from "./worker-spans.ts";

const beatIntervalMs = 500;
const logIntervalMs = 100;
/** Lines that wait at most; a worker that prints faster than they leave loses some, and is told so. */
const maxLines = 2000;
const maxLineLength = 2000;

export type SessionOptions = {
  readonly run: string;
  /** the runner's incarnation */
  readonly session: number;
  readonly node: string;
  readonly projectRoot: string;
  readonly segmentPrefix: string;
  readonly folder: { readonly path: string; close(): Promise<void> };
  /** how workers are reached from other nodes; absent where the runner itself is here */
  readonly links: LinksConfig | undefined;
  /** where large items lie for processes of other nodes; absent where the runner itself is here */
  readonly depot?: PayloadDepot | undefined;
  /** how workers reach processes that they cannot dial; absent where there is no such need, or no such way */
  readonly relay?: { readonly path: string; close(): Promise<void> } | undefined;
  /** workers write their lines there, and only warnings are sent; absent: all lines are sent */
  readonly logs: string | undefined;
  /** what workers may start; absent where the runner itself is here */
  readonly rights: ProgramRights | undefined;
  readonly spares?: SpareHosts | undefined;
  readonly spans: NodeSpans;
  readonly onExit: (report: ExitReport) => void;
  readonly onBeats: (event: Omit<HeartbeatsEvent, "proof">) => void;
  readonly onLog: (event: Omit<LogEvent, "proof">) => void;
  readonly onNotice: (text: string) => void;
};

export class RunSession {
  readonly run: string;
  readonly session: number;
  readonly openedMs = performance.now();
  readonly #options: SessionOptions;
  readonly #agent: NodeAgent;
  readonly #processes = new Map<string, Promise<WorkerProcess>>();
  /** by worker the newest that has ended, or was told to before it was started */
  readonly #ended = new Map<string, { readonly incarnation: number; readonly pid: number | undefined }>();
  readonly #spans: WorkerSpans;
  readonly #beats = new Map<string, HeartbeatsEvent["beats"][number]>();
  #lines: LogEvent["lines"] = [];
  #numDropped = 0;
  readonly #timers: NodeJS.Timeout[];
  #closed: Promise<void> | undefined;
  /** why this node ends the run here, unless its runner has asked for it */
  #endedSince: string | undefined;

  constructor(options: SessionOptions) {
    this.#options = options;
    this.run = options.run;
    this.session = options.session;
    const { node, projectRoot, logs, rights, spares } = options;
    this.#spans = new WorkerSpans(options.spans, options.run);
    this.#agent = new NodeAgent({
      name: node,
      projectRoot,
      logs,
      rights,
      spares,
      listener: {
        onHeartbeat: (worker, incarnation, beat) => {
          this.#spans.beats(worker, incarnation);
          this.#beats.set(keyOf(worker, incarnation), { worker, incarnation, ...beat });
        },
        onLog: (worker, level, line) => this.#addLine(worker, level, line),
      },
    });
    this.#timers = [
      setInterval(() => this.#sendBeats(), beatIntervalMs),
      setInterval(() => this.#sendLines(), logIntervalMs),
    ];
    for (const timer of this.#timers) timer.unref();
  }

  /** Its processes, as `rollout/0`. */
  get workers(): string[] {
    return [...this.#processes.keys()].map((key) => key.slice(0, key.indexOf("#")));
  }

  get isClosed(): boolean {
    return this.#closed !== undefined;
  }

  /** Throws `node.lost`. */
  checkOpen(): void {
    if (this.isClosed) throw new TreadleError("node.lost", `node '${this.#options.node}' has ended run '${this.run}'`);
  }

  /** Rejects with `worker.load-failed` when the module is not below the project's root. */
  async spawn(command: SpawnCommand): Promise<z.infer<typeof SpawnReply>> {
    this.checkOpen();
    const { component, rank, incarnation } = command.boot;
    const worker = `${component}/${rank}`;
    const key = keyOf(worker, incarnation);
    let process = this.#processes.get(key); // RU1
    const ended = this.#ended.get(worker);
    if (process === undefined && ended !== undefined && ended.incarnation >= incarnation) {
      if (ended.incarnation === incarnation && ended.pid !== undefined) return this.#reply(ended.pid);
      throw new TreadleError("worker.died", `worker '${worker}' was told to end before it had started`);
    }
    if (process === undefined) {
      this.#spans.starting(worker, incarnation);
      process = this.#agent.spawn({
        boot: this.#bootOf(command),
        env: command.env,
        memoryLimitMiB: command.memoryLimitMiB,
        interpreter: command.interpreter,
        codeHash: command.codeHash,
      });
      this.#processes.set(key, process);
      process.then(
        (started) => void started.exited.then((report) => this.#exited(key, report)),
        (error: Error) => {
          this.#processes.delete(key);
          this.#spans.notStarted(worker, incarnation, error.message);
        },
      );
    }
    return this.#reply((await process).pid);
  }

  #reply(pid: number | undefined): z.infer<typeof SpawnReply> {
    const { depot } = this.#options;
    return { ...(pid === undefined ? {} : { pid }), ...(depot ? { depot: [...depot.addresses] } : {}) };
  }

  /** Whether it was there. */
  async end({ worker, incarnation, verdict }: z.infer<typeof EndCommand>): Promise<boolean> {
    const process = await this.#processOf(worker, incarnation);
    if (process === undefined) return false;
    this.#spans.ending(worker, incarnation, "end", verdict?.message);
    process.end(verdict);
    return true;
  }

  /** Whether it was there. */
  async stop({ worker, incarnation, graceMs }: z.infer<typeof StopCommand>): Promise<boolean> {
    const process = await this.#processOf(worker, incarnation);
    if (process === undefined) return false;
    this.#spans.ending(worker, incarnation, "stop");
    void process.stop(graceMs);
    return true;
  }

  /** RU1 */
  async #processOf(worker: string, incarnation: number): Promise<WorkerProcess | undefined> {
    const process = await this.#processes.get(keyOf(worker, incarnation));
    if (process === undefined) this.#hasEnded(worker, incarnation, undefined);
    return process;
  }

  #hasEnded(worker: string, incarnation: number, pid: number | undefined): void {
    const known = this.#ended.get(worker)?.incarnation ?? -1;
    if (incarnation > known) this.#ended.set(worker, { incarnation, pid });
  }

  /** RU2. `since`: why this node does so of its own accord, which is reported of each of its workers. */
  close(since?: string): Promise<void> {
    if (this.#closed === undefined) this.#endedSince = since;
    this.#closed ??= (async () => {
      const { spans, run } = this.#options;
      using _ = spans.span("close run", "call", { run, attributes: { workers: this.#processes.size } });
      this.#spans.closing();
      await this.#agent.close();
      for (const timer of this.#timers) clearInterval(timer);
      this.#sendLines();
      const { depot, relay, links, folder, segmentPrefix, onNotice } = this.#options;
      // A disk that is full, or a folder that somebody took away, keeps nothing else open.
      for (const each of [depot, relay, folder])
        await each?.close().catch((error: Error) => onNotice(`what run '${run}' had here stays: ${error.message}`));
      if (links !== undefined) removeSegments(segmentPrefix);
    })();
    return this.#closed;
  }

  #bootOf({ boot, modulePath, projectRoot: from }: SpawnCommand): WorkerBoot {
    const { node, projectRoot, segmentPrefix, folder, links, relay } = this.#options;
    const relayed = relay === undefined ? {} : { relay: relay.path };
    const to = pathToFileURL(`${projectRoot}/`).href;
    return {
      ...boot,
      node,
      module: pathToFileURL(join(projectRoot, modulePath)).href,
      listenPath: `${folder.path}/${boot.component}-${boot.rank}-${boot.incarnation}`,
      segmentPrefix,
      ...(links === undefined ? {} : { remote: { ...links, ...relayed, projectRoot: { from, to } } }),
    };
  }

  #exited(key: string, report: ExitReport): void {
    this.#processes.delete(key);
    this.#hasEnded(report.worker, report.incarnation, report.pid);
    this.#beats.delete(key);
    this.#spans.exited(report);
    if (report.pid !== undefined) removeSegments(`${this.#options.segmentPrefix}${report.pid}-`); // S4
    this.#sendLines();
    const since = this.#endedSince;
    this.#options.onExit(since === undefined ? report : { ...report, endedByNode: since });
  }

  #sendBeats(): void {
    if (this.#beats.size === 0) return;
    const { node } = this.#options;
    const waiting = [...this.#beats.values()];
    this.#beats.clear();
    for (const beats of eventParts(waiting)) this.#options.onBeats({ node, session: this.session, beats });
  }

  #addLine(worker: string, level: string, line: string): void {
    const isWarning = level === "warn" || level === "error" || level === "fatal";
    if (!isWarning && this.#options.logs !== undefined) return;
    if (this.#lines.length >= maxLines) this.#numDropped++;
    else this.#lines.push({ worker, level, line: line.slice(0, maxLineLength) });
  }

  #sendLines(): void {
    const { node } = this.#options;
    const lines = this.#lines;
    if (this.#numDropped > 0) {
      const line = `${this.#numDropped} lines of workers on node '${node}' were dropped: they print faster than lines travel`;
      lines.push({ worker: lines.at(-1)?.worker ?? "", level: "warn", line });
    }
    this.#lines = [];
    this.#numDropped = 0;
    for (const part of eventParts(lines)) this.#options.onLog({ node, lines: part });
  }
}
