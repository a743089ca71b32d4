/**
 * A thread beside the worker's main thread, with two duties that must not wait for the main thread:
 * it ends the process and whatever it has started when the parent process is gone, so no orphan stays whatever the main
 * thread computes, and removes the sockets and the shared memory of the run that the parent can remove no more (S4);
 * and it writes a heartbeat a second to the parent, with how long, at least, the main thread has not turned its event loop.
 * The parent's end of the heartbeat pipe closes with the parent, which is seen here at once and without asking: on many
 * ranks that do nothing, asking would cost more than their work. The thread's source is a string so that it starts without a loader.
 */
import { Worker as Thread } from "node:worker_threads";
import { workerVariables } from "@treadle/contracts";

/** File descriptor of the pipe to the parent, the fourth of `stdio`. */
const heartbeatFd = 3;
const heartbeatIntervalMs = 1000;
/** How often the main thread says that its event loop turns. */
const stampIntervalMs = 500;

const source = `
const { workerData } = require("node:worker_threads");
const { readdirSync, readFileSync, rmSync, writeFileSync, writeSync } = require("node:fs");
const { Socket } = require("node:net");
const { turn, fd, intervalMs, stampMs, leftovers, mark, group } = workerData;
const end = () => {
  if (mark) {
    for (const name of readdirSync("/proc")) {
      if (!/^\\d+$/.test(name) || Number(name) === process.pid) continue;
      try { if (readFileSync("/proc/" + name + "/environ", "latin1").includes(mark + "\\0")) process.kill(Number(name), "SIGKILL"); } catch {}
    }
  }
  try { rmSync(leftovers.socketFolder, { recursive: true, force: true }); } catch {}
  try {
    for (const name of readdirSync("/dev/shm")) {
      if (name.startsWith(leftovers.segmentPrefix)) rmSync("/dev/shm/" + name, { force: true });
    }
  } catch {}
  if (group) try { writeFileSync(group + "/cgroup.kill", "1"); } catch {}
  try { process.kill(-process.pid, "SIGKILL"); } catch {}
  process.kill(process.pid, "SIGKILL");
};
new Socket({ fd, readable: true, writable: false }).on("error", end).on("close", end).resume();
setInterval(() => {
  // Both threads have this clock, and nobody sets it.
  const turnedMs = Number(process.hrtime.bigint() - Atomics.load(turn, 0)) / 1e6;
  const busyMs = Math.round(Math.max(0, turnedMs - stampMs));
  const line = JSON.stringify({ busyMs, rssBytes: process.memoryUsage.rss() }) + "\\n";
  try { writeSync(fd, line); } catch (error) { if (error.code === "EPIPE") end(); }
}, intervalMs);
`;

/** What a run keeps outside of its folder. */
export type Leftovers = { readonly socketFolder: string; readonly segmentPrefix: string };

export function startWatchdog(leftovers: Leftovers): () => void {
  const turn = new BigInt64Array(new SharedArrayBuffer(8));
  const stamp = () => Atomics.store(turn, 0, process.hrtime.bigint());
  stamp();
  const timer = setInterval(stamp, stampIntervalMs);
  timer.unref();
  const { [workerVariables.mark]: mark, [workerVariables.group]: group } = process.env;
  const workerData = {
    turn,
    fd: heartbeatFd,
    intervalMs: heartbeatIntervalMs,
    stampMs: stampIntervalMs,
    leftovers,
    mark: mark === undefined ? undefined : `${workerVariables.mark}=${mark}`,
    group,
  };
  const thread = new Thread(source, { eval: true, workerData, execArgv: [], env: {}, stdout: false });
  thread.unref();
  return () => {
    clearInterval(timer);
    void thread.terminate();
  };
}
