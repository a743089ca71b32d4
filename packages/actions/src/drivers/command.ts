import { type ChildProcess, spawn } from "node:child_process";
import { Readable, type Writable } from "node:stream";
import { TreadleError } from "@treadle/contracts";
import { longestTimerMs } from "../formulation/action-spec.ts";
import { type CommandSignal, defaultLimits, type ExecRequest, type ExecResult, type ExecStatus } from "./sandbox.ts";

/** A command that runs, wherever it does. */
export type RunningCommand = {
  readonly stdin: Writable;
  readonly stdout: Readable;
  readonly stderr: Readable;
  /** Resolves with whether it begins: input is for it alone. It begins at once when absent. */
  readonly begins?: Promise<boolean>;
  /** Rejects when it could not be started. */
  readonly exited: Promise<{ readonly code: number | null; readonly signal: NodeJS.Signals | null }>;
};

/** How a driver starts and ends the processes of one command. */
export type CommandHost = {
  start(): RunningCommand;
  /** sent to everything that the command started; resolves when it was */
  signal(name: CommandSignal): void | Promise<void>;
  /** ends everything for sure; resolves when nothing is left */
  kill(): Promise<void>;
  /** whether the kernel ended something of it for lack of memory */
  ranOutOfMemory?(): boolean;
};

/** Above what holds a sandbox, and what the engine starts a command in a container with. */
const holderBytes = 16 * 2 ** 20;

/**
 * Shell text (CG7, DK4): when its sandbox's memory runs out, the kernel ends this shell and its children before the sandbox's
 * holder, which may be as large as they are, since so much more counts as theirs. The score is in thousandths of the memory that
 * ran out: no more than is needed here, because where a machine's memory runs out, what uses most of it is to go. Raising
 * one's own needs no right.
 */
export function raisesOomScore(memoryBytes: number | undefined): string {
  if (memoryBytes === undefined) return ":";
  return `{ echo ${oomScore(memoryBytes)} > /proc/self/oom_score_adj; } 2>/dev/null`;
}

/** 1 to 1000, for a sandbox of so much memory. */
export const oomScore = (memoryBytes: number): number => Math.min(1000, Math.ceil((holderBytes / memoryBytes) * 1000));

/**
 * Runs one command within its limits.
 *
 * CD1 it settles once, after everything the command started has ended, whether it ignores SIGTERM, forks or hides.
 * CD2 what is kept of its output never exceeds the limit; the command that exceeds it is ended.
 * CD3 its end is asked for first (SIGTERM, then no more input), because a test run may write its report, and made after `graceMs`
 * (SIGKILL).
 * CD4 what does not end after SIGKILL, as it waits for a disk that hangs, fails the command; nobody waits for it.
 */
export async function runCommand(host: CommandHost, request: Omit<ExecRequest, "command">): Promise<ExecResult> {
  const timeoutMs = request.timeoutMs ?? defaultLimits.timeoutMs;
  const graceMs = request.graceMs ?? defaultLimits.graceMs;
  const maxOutputBytes = request.maxOutputBytes ?? defaultLimits.maxOutputBytes;
  const startedMs = performance.now();
  const command = host.start();
  const kept = { stdout: [] as Buffer[], stderr: [] as Buffer[] };
  let bytes = 0;
  let ending: ExecStatus | undefined;
  let graceTimer: NodeJS.Timeout | undefined;
  let killed: Promise<void> | undefined;
  let cannotEnd: (error: Error) => void = () => {};
  const stuck = new Promise<never>((_, reject) => {
    cannotEnd = reject;
  });
  stuck.catch(() => {});
  const kill = (): Promise<void> => {
    if (killed === undefined) {
      killed = host.kill();
      killed.catch(cannotEnd); // CD4
    }
    return killed;
  };
  const { stdin } = request;
  const giveNoMore = (): void => {
    if (stdin instanceof Readable) stdin.unpipe(command.stdin);
    command.stdin.end();
  };
  const end = (status: ExecStatus): void => {
    if (ending !== undefined) return;
    ending = status;
    if (status === "output-limit" || graceMs === 0) {
      void kill();
      return;
    }
    // A shell's child that has not begun its program yet loses the signal, and would wait for input until it is killed. The end of
    // the input alone would look like success.
    void Promise.resolve(host.signal("SIGTERM")).finally(giveNoMore);
    graceTimer = setTimeout(() => void kill(), graceMs);
  };
  for (const stream of ["stdout", "stderr"] as const) {
    command[stream].on("data", (chunk: Buffer) => {
      const room = maxOutputBytes - bytes;
      if (room > 0) {
        const part = chunk.length > room ? chunk.subarray(0, room) : chunk;
        if (request.keepsOutput !== false) kept[stream].push(part);
        request.onOutput?.(stream, part);
      }
      bytes += chunk.length;
      if (bytes > maxOutputBytes) end("output-limit");
    });
  }
  // The command may end without reading what it was given.
  command.stdin.on("error", () => {});
  let isOver = false;
  const giveInput = (): void => {
    if (isOver || ending !== undefined) return;
    if (stdin instanceof Readable) stdin.pipe(command.stdin);
    else command.stdin.end(stdin ?? "");
  };
  if (command.begins === undefined) giveInput();
  else void command.begins.then((begins) => begins && giveInput());
  request.onStart?.((name) => {
    // What has its number by then may be somebody else's.
    if (!isOver) void host.signal(name);
  });
  const timer = setTimeout(() => end("timeout"), Math.min(timeoutMs, longestTimerMs));
  const abort = (): void => end("cancelled");
  if (request.signal?.aborted) abort();
  request.signal?.addEventListener("abort", abort);
  try {
    const { code, signal } = await Promise.race([command.exited, stuck]);
    isOver = true;
    // Its last descendants may hold the output open; they end before it is complete.
    await kill();
    await Promise.all([closed(command.stdout), closed(command.stderr)]);
    const status: ExecStatus =
      ending ?? (host.ranOutOfMemory?.() && code !== 0 ? "out-of-memory" : signal === null ? "exited" : "killed");
    return {
      status,
      exitCode: status === "exited" ? code : null,
      stdout: Buffer.concat(kept.stdout),
      stderr: Buffer.concat(kept.stderr),
      seconds: (performance.now() - startedMs) / 1000,
    };
  } finally {
    isOver = true;
    if (stdin instanceof Readable) stdin.unpipe(command.stdin);
    clearTimeout(timer);
    clearTimeout(graceTimer);
    request.signal?.removeEventListener("abort", abort);
  }
}

export type SpawnOptions = {
  readonly program: string;
  readonly args: readonly string[];
  readonly environment: Readonly<Record<string, string>>;
  readonly cwd?: string | undefined;
};

/** A command as a child of this process. */
export function spawnCommand({
  program,
  args,
  environment,
  cwd,
}: SpawnOptions): RunningCommand & { child: ChildProcess } {
  const child = spawn(program, args, {
    env: { ...environment },
    cwd,
    stdio: ["pipe", "pipe", "pipe"],
    // A group of its own: signals to ours do not reach it, and its group can be signalled.
    detached: true,
  });
  const exited = new Promise<Awaited<RunningCommand["exited"]>>((resolve, reject) => {
    child.once("error", (cause) =>
      reject(new TreadleError("sandbox.failed", `'${program}' could not be started: ${cause.message}`, { cause })),
    );
    child.once("exit", (code, signal) => resolve({ code, signal }));
  });
  return { child, stdin: child.stdin, stdout: child.stdout, stderr: child.stderr, exited };
}

/** Of a process that escaped its driver, and may hold the output open for as long as it likes. */
const escapedMs = 1000;

async function closed(stream: Readable): Promise<void> {
  if (stream.closed) return;
  const cut = setTimeout(() => stream.destroy(), escapedMs);
  await new Promise((resolve) => stream.once("close", resolve));
  clearTimeout(cut);
}

/** A negative id names a process group. */
export function signalProcess(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {
    // It has ended.
  }
}
