/**
 * A thread beside the worker's main thread, with duties that must not wait for the main thread:
 * it ends the process and whatever it has started when the parent process is gone, so no orphan stays whatever the main
 * thread computes or waits for, and removes the sockets and the shared memory of the run that the parent can remove no more (S4);
 * and, once the process has been told which worker it is, it writes a heartbeat a second to the parent, with how long, at
 * least, the main thread has not turned its event loop, and, once that is longer than `stallMs`, with the stack of what it
 * computes: a pause of the debugger interrupts even a regular expression that backtracks.
 * The parent's end of the heartbeat pipe closes with the parent, which is seen here at once and without asking: on many
 * ranks that do nothing, asking would cost more than their work. The thread's source is a string so that it starts without a loader.
 */
import { pathToFileURL } from "node:url";
import { Worker as Thread } from "node:worker_threads";
import { maxStackLength, workerVariables } from "@treadle/contracts";

/** File descriptor of the pipe to the parent, the fourth of `stdio`. */
const heartbeatFd = 3;
const heartbeatIntervalMs = 1000;
/** How often the main thread says that its event loop turns. */
const stampIntervalMs = 500;

const source = `
const { parentPort, workerData } = require("node:worker_threads");
const { closeSync, openSync, readdirSync, readSync, rmSync, writeFileSync, writeSync } = require("node:fs");
const { Socket } = require("node:net");
const { Session } = require("node:inspector");
const { SourceMap } = require("node:module");
const { turn, fd, intervalMs, stampMs, mark, group, maxStackLength, root } = workerData;
let worker;
let stack;
let isSampled = false;
const placeOf = (script, { lineNumber, columnNumber }) => {
  let line = lineNumber, column = columnNumber;
  const inlined = /^data:application\\/json[^,]*;base64,(.*)$/.exec(script?.sourceMapURL ?? "");
  if (inlined) {
    const entry = new SourceMap(JSON.parse(Buffer.from(inlined[1], "base64").toString())).findEntry(line, column);
    if (entry.originalLine !== undefined) ({ originalLine: line, originalColumn: column } = entry);
  }
  return (script?.url ?? "").replace(root, "").replace("file://", "") + ":" + (line + 1) + ":" + (column + 1);
};
const sample = () => {
  const session = new Session();
  const scripts = new Map();
  const finish = () => { try { session.post("Debugger.disable"); session.disconnect(); } catch {} };
  session.connectToMainThread();
  session.on("Debugger.scriptParsed", ({ params }) => scripts.set(params.scriptId, params));
  session.on("Debugger.paused", ({ params }) => {
    try {
      const urlOf = ({ location }) => scripts.get(location.scriptId)?.url ?? "";
      const own = params.callFrames.filter((frame) => urlOf(frame).startsWith("file:") && !/\\/node_modules\\/|\\/packages\\/(runtime|transport)\\//.test(urlOf(frame)));
      const frames = (own.length > 0 ? own : params.callFrames).slice(0, 4);
      stack = frames
        .map((frame) => "'" + (frame.functionName || "an unnamed function") + "' (" + placeOf(scripts.get(frame.location.scriptId), frame.location) + ")")
        .join(", called by ")
        .slice(0, maxStackLength);
    } catch {}
    session.post("Debugger.resume", finish);
  });
  session.post("Debugger.enable", () => session.post("Debugger.pause"));
};
// Bounded, as in processes.ts, which this thread cannot load.
const hasMark = (pid, environment) => {
  const file = openSync("/proc/" + pid + "/environ", "r");
  try {
    let length = 0;
    for (let num = -1; num !== 0 && length < environment.length; length += num)
      num = readSync(file, environment, length, environment.length - length, null);
    return environment.subarray(0, length).includes(mark + "\\0");
  } finally { closeSync(file); }
};
const end = () => {
  if (mark) {
    const environment = Buffer.alloc(2 * 2 ** 20);
    for (const name of readdirSync("/proc")) {
      if (!/^\\d+$/.test(name) || Number(name) === process.pid) continue;
      try { if (hasMark(name, environment)) process.kill(Number(name), "SIGKILL"); } catch {}
    }
  }
  if (worker) {
    try { rmSync(worker.socketFolder, { recursive: true, force: true }); } catch {}
    try {
      for (const name of readdirSync("/dev/shm")) {
        if (name.startsWith(worker.segmentPrefix)) rmSync("/dev/shm/" + name, { recursive: true, force: true });
      }
    } catch {}
  }
  if (group) try { writeFileSync(group + "/cgroup.kill", "1"); } catch {}
  try { process.kill(-process.pid, "SIGKILL"); } catch {}
  process.kill(process.pid, "SIGKILL");
};
new Socket({ fd, readable: true, writable: false }).on("error", end).on("close", end).resume();
const beat = () => {
  // Both threads have this clock, and nobody sets it.
  const turnedMs = Number(process.hrtime.bigint() - Atomics.load(turn, 0)) / 1e6;
  const busyMs = Math.round(Math.max(0, turnedMs - stampMs));
  if (busyMs <= worker.stallMs) { isSampled = false; stack = undefined; }
  else if (!isSampled) {
    isSampled = true;
    try { sample(); } catch {}
  }
  const line = JSON.stringify({ busyMs, stack, rssBytes: process.memoryUsage.rss() }) + "\\n";
  try { writeSync(fd, line); } catch (error) { if (error.code === "EPIPE") end(); }
};
parentPort.once("message", (told) => {
  worker = told;
  setInterval(beat, intervalMs);
});
`;

/** What a run keeps outside of its folder. */
export type Leftovers = { readonly socketFolder: string; readonly segmentPrefix: string };

export type Watched = Leftovers & {
  /** a main thread that computes for longer without a pause has its stack sampled, once */
  readonly stallMs?: number | undefined;
};

export class Watchdog {
  readonly #thread: Thread;
  readonly #stamping: NodeJS.Timeout;

  constructor() {
    const turn = new BigInt64Array(new SharedArrayBuffer(8));
    const stamp = () => Atomics.store(turn, 0, process.hrtime.bigint());
    stamp();
    this.#stamping = setInterval(stamp, stampIntervalMs);
    this.#stamping.unref();
    const { [workerVariables.mark]: mark, [workerVariables.group]: group } = process.env;
    const workerData = {
      turn,
      fd: heartbeatFd,
      intervalMs: heartbeatIntervalMs,
      stampMs: stampIntervalMs,
      mark: mark === undefined ? undefined : `${workerVariables.mark}=${mark}`,
      group,
      maxStackLength,
      root: pathToFileURL(`${process.cwd()}/`).href,
    };
    this.#thread = new Thread(source, { eval: true, workerData, execArgv: [], env: {}, stdout: false });
    this.#thread.unref();
  }

  /** The process is this worker now: heartbeats begin. */
  watch({ stallMs = Number.POSITIVE_INFINITY, ...leftovers }: Watched): void {
    this.#thread.postMessage({ ...leftovers, stallMs });
  }

  stop(): void {
    clearInterval(this.#stamping);
    void this.#thread.terminate();
  }
}
