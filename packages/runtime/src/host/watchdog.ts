/**
 * A thread beside the worker's main thread, with two duties that must not wait for the main thread:
 * it ends the whole process group when the parent process is gone, so no orphan stays whatever the main thread computes,
 * and removes the sockets and the shared memory of the run that the parent can remove no more (S4);
 * and it writes a heartbeat a second to the parent, with how long the main thread has not turned its event loop.
 * The thread's source is a string so that it starts without a loader.
 */
import { Worker as Thread } from "node:worker_threads";

/** File descriptor of the pipe to the parent, the fourth of `stdio`. */
export const heartbeatFd = 3;
export const heartbeatIntervalMs = 1000;

const source = `
const { workerData } = require("node:worker_threads");
const { readdirSync, rmSync, writeSync } = require("node:fs");
const { turn, parent, fd, intervalMs, leftovers } = workerData;
const end = () => {
  try { rmSync(leftovers.socketFolder, { recursive: true, force: true }); } catch {}
  try {
    for (const name of readdirSync("/dev/shm")) {
      if (name.startsWith(leftovers.segmentPrefix)) rmSync("/dev/shm/" + name, { force: true });
    }
  } catch {}
  try { process.kill(-process.pid, "SIGKILL"); } catch {}
  process.kill(process.pid, "SIGKILL");
};
setInterval(() => { if (process.ppid !== parent) end(); }, 200);
setInterval(() => {
  const busyMs = Math.max(0, Date.now() - Number(Atomics.load(turn, 0)));
  const line = JSON.stringify({ busyMs, rssBytes: process.memoryUsage.rss() }) + "\\n";
  try { writeSync(fd, line); } catch (error) { if (error.code === "EPIPE") end(); }
}, intervalMs);
`;

/** What a run keeps outside of its folder. */
export type Leftovers = { readonly socketFolder: string; readonly segmentPrefix: string };

export function startWatchdog(parentPid: number, leftovers: Leftovers): () => void {
  const turn = new BigInt64Array(new SharedArrayBuffer(8));
  const stamp = () => Atomics.store(turn, 0, BigInt(Date.now()));
  stamp();
  const timer = setInterval(stamp, 200);
  timer.unref();
  const workerData = { turn, parent: parentPid, fd: heartbeatFd, intervalMs: heartbeatIntervalMs, leftovers };
  const thread = new Thread(source, { eval: true, workerData, execArgv: [], env: {}, stdout: false });
  thread.unref();
  return () => {
    clearInterval(timer);
    void thread.terminate();
  };
}
