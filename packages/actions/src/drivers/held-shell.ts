/**
 * A shell that is started once and then told one action after another: no process start an action but a fork of its own.
 *
 * Owned here: the shell's process, the one action it runs, the text between them. What starts, limits and ends processes
 * is the driver's.
 *
 * Y1 actions of one shell run one at a time, each in a forked subshell: variables, `cd` and errors end with it.
 * Y2 an action settles once, and never rejects because of what it did. One that outlives its limits, prints without end
 *    or is cancelled takes the shell and all its processes with it; the next action gets a fresh one.
 * Y3 what is kept of an action's output never exceeds the limit.
 * Y4 an action cannot feign its end: it is marked by a number that is drawn for each shell and that no action is told.
 */
import { randomBytes } from "node:crypto";
import type { EventEmitter } from "node:events";
import type { Readable, Writable } from "node:stream";
import { TreadleError } from "@treadle/contracts";
import { longestTimerMs } from "../formulation/action-spec.ts";
import { defaultLimits, type ExecStatus } from "./sandbox.ts";

export type ShellRequest = {
  /** POSIX shell text; `$1`, `$2`, … are `args`, which are never parsed as shell text */
  readonly program: string;
  readonly args?: readonly string[] | undefined;
  readonly environment?: Readonly<Record<string, string>> | undefined;
  /** core numbers; as they were when absent */
  readonly cores?: readonly number[] | undefined;
  readonly timeoutMs?: number | undefined;
  readonly maxOutputBytes?: number | undefined;
  readonly signal?: AbortSignal | undefined;
};

export type ShellResult = {
  readonly status: ExecStatus;
  /** null unless it ended by itself */
  readonly exitCode: number | null;
  /** stdout and stderr, as they were written */
  readonly output: Buffer;
  readonly seconds: number;
};

/** A running shell as its driver sees it; its commands arrive on stdin. */
export type ShellProcess = {
  /** a child of this process, or what stands for one elsewhere; emits `error`, and `close` when its output has ended */
  readonly child: EventEmitter & {
    readonly stdin: Writable | null;
    readonly stdout: Readable | null;
    readonly stderr: Readable | null;
  };
  /** What the shell has to run first to be on them; undefined once it is. */
  setCores(cores: readonly number[]): Promise<string | undefined>;
  /** others may change its cores between two actions, so that every action sets them */
  readonly sharesCores?: boolean | undefined;
  /** number of processes of the shell and what it started; undefined where the driver cannot tell */
  countProcesses(): Promise<number | undefined>;
  /** whether the kernel ended something of it for lack of memory since the last time this was asked */
  ranOutOfMemory(): boolean;
  /** ends everything for sure; resolves when nothing is left */
  kill(): Promise<void>;
};

type Running = {
  readonly process: ShellProcess;
  readonly mark: string;
  /** of the shell itself, without any action's */
  numProcesses: number | undefined;
  cores: string | undefined;
  received: (chunk: Buffer) => void;
  exited: () => void;
  hasExited: boolean;
  complaint: string;
};

const startTimeoutMs = 10_000;

export class HeldShell {
  readonly #start: () => Promise<ShellProcess>;
  #running: Running | undefined;
  #last: Promise<unknown> = Promise.resolve();
  readonly #closing = new AbortController();

  constructor(start: () => Promise<ShellProcess>) {
    this.#start = start;
  }

  /** Runs an action after those before it (Y1). Throws `sandbox.failed` when no shell can be started. */
  ask(request: ShellRequest): Promise<ShellResult> {
    const turn = this.#last.then(() => this.#ask(request));
    this.#last = turn.catch(() => {});
    return turn;
  }

  /** Ends what runs, and the shell. */
  async close(): Promise<void> {
    this.#closing.abort();
    await this.#last;
    await this.#end();
  }

  async #ask(request: ShellRequest): Promise<ShellResult> {
    if (this.#closing.signal.aborted) throw new TreadleError("sandbox.failed", "the shell is closed");
    const running = await this.#ready();
    const cores = request.cores?.join();
    let first: string | undefined;
    if (request.cores !== undefined && (cores !== running.cores || running.process.sharesCores)) {
      first = await running.process.setCores(request.cores);
      running.cores = cores;
    }
    const result = await this.#exchange(running, request, first);
    // X1 of commands, for drivers that can tell: what an action left in the background goes, and the shell with it.
    if (result.status !== "exited" || (await this.#hasStrays(running))) await this.#end();
    return result;
  }

  async #hasStrays({ process, numProcesses }: Running): Promise<boolean> {
    if (numProcesses === undefined) return false;
    return ((await process.countProcesses()) ?? 0) > numProcesses;
  }

  async #ready(): Promise<Running> {
    if (this.#running && !this.#running.hasExited) return this.#running;
    await this.#end();
    const process = await this.#start();
    const running: Running = {
      process,
      mark: `\x1e${randomBytes(12).toString("hex")} `,
      numProcesses: undefined,
      cores: undefined,
      received: () => {},
      exited: () => {},
      hasExited: false,
      complaint: "",
    };
    this.#running = running;
    const { child } = process;
    child.stdout!.on("data", (chunk: Buffer) => running.received(chunk));
    child.stderr!.on("data", (chunk: Buffer) => {
      running.complaint = (running.complaint + chunk).slice(-2000);
    });
    // It may end without reading what it was told.
    child.stdin!.on("error", () => {});
    const gone = (): void => {
      running.hasExited = true;
      running.exited();
    };
    child.once("error", (error) => {
      running.complaint = error.message;
      gone();
    });
    child.once("close", gone);
    const first = await this.#exchange(running, { program: ":", timeoutMs: startTimeoutMs });
    if (first.exitCode !== 0) {
      await this.#end();
      throw new TreadleError("sandbox.failed", `a shell did not start: ${running.complaint.trim() || first.status}`);
    }
    running.numProcesses = await process.countProcesses();
    return running;
  }

  #exchange(running: Running, request: ShellRequest, first = ""): Promise<ShellResult> {
    const { timeoutMs = defaultLimits.timeoutMs, maxOutputBytes = defaultLimits.maxOutputBytes } = request;
    const startedMs = performance.now();
    let resolve: (result: ShellResult) => void = () => {};
    const promise = new Promise<ShellResult>((settle) => {
      resolve = settle;
    });
    let output: Buffer = Buffer.alloc(0);
    const settle = (status: ExecStatus, exitCode: number | null, length: number): void => {
      clearTimeout(timer);
      for (const signal of signals) signal.removeEventListener("abort", cancel);
      running.received = () => {};
      running.exited = () => {};
      const kept = output.subarray(0, Math.min(length, maxOutputBytes));
      resolve({ status, exitCode, output: kept, seconds: (performance.now() - startedMs) / 1000 });
    };
    const cancel = (): void => settle("cancelled", null, output.length);
    const signals = request.signal ? [this.#closing.signal, request.signal] : [this.#closing.signal];
    const timer = setTimeout(() => settle("timeout", null, output.length), Math.min(timeoutMs, longestTimerMs));
    running.received = (chunk) => {
      // The mark may be split over chunks; looking again is cheap, because outputs are small or ended.
      const from = Math.max(0, output.length - running.mark.length);
      output = output.length === 0 ? chunk : Buffer.concat([output, chunk]);
      const at = output.indexOf(running.mark, from);
      if (at > maxOutputBytes || (at < 0 && output.length > maxOutputBytes + running.mark.length)) {
        settle("output-limit", null, output.length);
      } else if (at >= 0) {
        const end = output.indexOf("\n", at);
        if (end < 0) return;
        const exitCode = Number(output.toString("latin1", at + running.mark.length, end));
        if (exitCode !== 0 && running.process.ranOutOfMemory()) settle("out-of-memory", null, at);
        else settle("exited", exitCode, at);
      }
    };
    running.exited = () => settle(running.process.ranOutOfMemory() ? "out-of-memory" : "killed", null, output.length);
    if (running.hasExited) running.exited();
    else if (signals.some((signal) => signal.aborted)) cancel();
    else {
      for (const signal of signals) signal.addEventListener("abort", cancel, { once: true });
      running.process.child.stdin!.write(first + shellText(request, running.mark));
    }
    return promise;
  }

  async #end(): Promise<void> {
    const running = this.#running;
    this.#running = undefined;
    await running?.process.kill();
  }
}

/** One line for the held shell: the action in a subshell without stdin, then the mark and its exit code. */
function shellText({ program, args = [], environment = {} }: ShellRequest, mark: string): string {
  const variables = Object.entries(environment).map(([name, value]) => `export ${name}=${quoted(value)}; `);
  const parameters = args.length > 0 ? `set -- ${args.map(quoted).join(" ")}; ` : "";
  const action = `${variables.join("")}${parameters}eval ${quoted(program)}`;
  return `( ${action} ) </dev/null 2>&1; printf '${mark}%d\\n' "$?"\n`;
}

/** As one word of a shell. */
export const quoted = (text: string): string => `'${text.replaceAll("\0", "").replaceAll("'", `'\\''`)}'`;
