/**
 * Starts, limits, watches and ends worker processes on one machine.
 *
 * Owner of: every worker process it started, their log files, their heartbeat pipes.
 *
 * NA1 a worker runs in a process group of its own; ending it ends whatever it started, also what has left that group.
 * NA2 only modules below the project root are run, and none of what runs keep there.
 * NA3 `exited` settles exactly once for every process started, within moments of its end whoever holds its pipes, with its
 *    last log lines and the failure that it wrote.
 */
import { access, constants } from "node:fs/promises";
import type { Readable } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import { type ErrorRecord, type ExitReport, type Interpreter, TreadleError, type WorkerBoot } from "@treadle/contracts";
import type { ProgramRights } from "@treadle/contracts/program-rights";
import { LogTail, parseLogLine } from "@treadle/observe";
import { checkCode } from "../author/module-loader.ts";
import { type Heartbeat, maxFailureLineLength, parseFailure, parseHeartbeat } from "../author/worker-lines.ts";
import { eachLine } from "./bounded-lines.ts";
import { HostProcess } from "./host-process.ts";
import { openLogFile } from "./log-file.ts";
import { deviceVariables } from "./machine-devices.ts";
import type { SpareHosts } from "./spare-hosts.ts";

export type SpawnRequest = {
  readonly boot: WorkerBoot;
  readonly env: Readonly<Record<string, string>>;
  /** resident memory above which the process is ended; also bounds its JavaScript heap */
  readonly memoryLimitMiB?: number | undefined;
  /** default: the Node of this process */
  readonly interpreter?: Interpreter | undefined;
  /** of the project and of Treadle, as `SpawnCommand` says it */
  readonly codeHash?: string;
};

export type AgentListener = {
  readonly onHeartbeat: (worker: string, incarnation: number, heartbeat: Heartbeat) => void;
  readonly onLog: (worker: string, level: string, line: string) => void;
};

const maxLineLength = 4096;
/** From a worker's end until its pipes are closed from this side, if whoever holds them has not. */
const lastLinesMs = 1000;

export class WorkerProcess {
  readonly worker: string;
  readonly incarnation: number;
  readonly exited: Promise<ExitReport>;
  readonly #host: HostProcess;
  #alive = true;
  #verdict: ErrorRecord | undefined;

  constructor(host: HostProcess, request: SpawnRequest, logs: string | undefined, listener: AgentListener) {
    const { boot, memoryLimitMiB } = request;
    const { child, descendants } = host;
    this.#host = host;
    this.worker = `${boot.component}/${boot.rank}`;
    this.incarnation = boot.incarnation;
    const tail = new LogTail({ lines: 30, maxLineLength: 400 });
    const logFile = logs === undefined ? undefined : openLogFile(logs, this.worker);
    for (const stream of [child.stdout, child.stderr]) {
      eachLine(stream, maxFailureLineLength, (whole) => {
        const failure = parseFailure(whole);
        if (failure) {
          this.#verdict ??= failure;
          return;
        }
        const line = whole.slice(0, maxLineLength);
        if (line.trim() === "") return;
        logFile?.write(`${line}\n`);
        const { level, message } = parseLogLine(line, stream === child.stderr ? "warn" : "info");
        tail.write(`${message}\n`);
        listener.onLog(this.worker, level, message);
      });
    }
    // A process that could not be given its pipes has none, and no list of them.
    const [, , , beats] = (child.stdio as typeof child.stdio | undefined) ?? [];
    eachLine(beats as Readable | undefined, maxFailureLineLength, (line) => {
      const heartbeat = parseHeartbeat(line);
      if (!heartbeat) return;
      const usedMiB = heartbeat.rssBytes / 2 ** 20;
      if (memoryLimitMiB !== undefined && usedMiB > memoryLimitMiB) {
        this.end({
          code: "device.out-of-memory",
          message: `worker '${this.worker}' used '${usedMiB.toFixed(0)}' MiB of memory, more than its limit of ${memoryLimitMiB} MiB; raise its memoryLimitMiB or give it smaller batches`,
        });
      }
      listener.onHeartbeat(this.worker, this.incarnation, heartbeat);
    });
    host.become(boot, ownVariables(request));
    this.exited = new Promise((resolve) => {
      const settle = (code: number | null, signal: string | null, cause?: Error) => {
        if (!this.#alive) return;
        this.#alive = false;
        logFile?.end();
        const failure = this.#verdict ?? (cause ? { code: "worker.died", message: cause.message } : undefined);
        const { worker, incarnation } = this;
        resolve({ worker, incarnation, pid: child.pid, code, signal, failure, logTail: tail.lines() });
      };
      const closed = new Promise<void>((resolveClosed) => child.once("close", () => resolveClosed()));
      child.once("exit", async (code, signal) => {
        host.kill(); // NA1
        await descendants.end();
        await Promise.race([closed, delay(lastLinesMs, undefined, { ref: false })]);
        settle(code, signal); // NA3
        for (const stream of child.stdio ?? []) stream?.destroy();
      });
      child.once("error", (cause) => void descendants.end().then(() => settle(null, null, cause)));
    });
  }

  get pid(): number | undefined {
    return this.#host.child.pid;
  }

  get alive(): boolean {
    return this.#alive;
  }

  /** Ends the process at once; `verdict` is reported as the reason. */
  end(verdict?: ErrorRecord): void {
    this.#verdict ??= verdict;
    this.#host.kill();
  }

  /** As `HostProcess`. */
  endNow(): void {
    this.#host.endNow();
  }

  /** Waits for an orderly end, then ends it. */
  async stop(graceMs: number): Promise<ExitReport> {
    const timer = setTimeout(() => this.end(), graceMs);
    const report = await this.exited;
    clearTimeout(timer);
    return report;
  }
}

export class NodeAgent {
  readonly name: string;
  readonly #projectRoot: string;
  readonly #logs: string | undefined;
  readonly #listener: AgentListener;
  readonly #rights: ProgramRights | undefined;
  readonly #spares: SpareHosts | undefined;
  readonly #processes = new Set<WorkerProcess>();
  #isClosed = false;

  /** Without `logs` the listener alone gets what workers print; without `rights` workers start what their configuration says. */
  constructor(options: {
    name: string;
    projectRoot: string;
    logs: string | undefined;
    rights: ProgramRights | undefined;
    spares?: SpareHosts | undefined;
    listener: AgentListener;
  }) {
    this.name = options.name;
    this.#rights = options.rights;
    this.#spares = options.spares;
    this.#projectRoot = options.projectRoot;
    this.#logs = options.logs;
    this.#listener = options.listener;
    process.once("exit", this.#endAllNow);
  }

  async spawn(request: SpawnRequest): Promise<WorkerProcess> {
    await checkCode(request.boot.module, [this.#projectRoot]); // NA2
    const { boot, memoryLimitMiB, interpreter = { command: process.execPath, flags: [] }, codeHash = "" } = request;
    await this.#checkInterpreter(interpreter);
    if (this.#isClosed) throw new TreadleError("node.lost", `node '${this.name}' is leaving; it starts no worker`);
    const start = { interpreter, memoryLimitMiB, rights: this.#rights, projectRoot: this.#projectRoot };
    const own = ownVariables(request);
    const shared = Object.fromEntries(Object.entries(request.env).filter(([name]) => !(name in own)));
    const host =
      this.#spares?.take({ ...start, env: shared, ahead: boot.module }, codeHash) ??
      (await HostProcess.start(this.name, { ...start, env: { ...shared, ...own } }));
    const started = new WorkerProcess(host, request, this.#logs, this.#listener);
    this.#processes.add(started);
    void started.exited.then(() => this.#processes.delete(started));
    return started;
  }

  /** Ends every process that is left. */
  async close(): Promise<void> {
    this.#isClosed = true;
    for (const started of this.#processes) started.end();
    await Promise.all([...this.#processes].map((started) => started.exited));
    process.off("exit", this.#endAllNow);
  }

  readonly #endAllNow = (): void => {
    for (const started of this.#processes) started.endNow();
  };

  async #checkInterpreter({ command }: Interpreter): Promise<void> {
    await access(command, constants.X_OK).catch((cause) => {
      throw new TreadleError(
        "worker.load-failed",
        `'${command}', which is to run workers on node '${this.name}', is no program there; install it, or change the interpreter of the node's group in cluster.groups`,
        { cause },
      );
    });
  }
}

/** Those that differ from worker to worker of a component; nothing reads them before there is a worker. */
function ownVariables({ boot, env }: SpawnRequest): Record<string, string> {
  const visible = deviceVariables.flatMap((name) => (env[name] === undefined ? [] : [[name, env[name]]]));
  return { ...Object.fromEntries(visible), TREADLE_DEVICES: boot.devices.join(",") };
}
