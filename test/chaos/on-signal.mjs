/**
 * Loaded into agents and workers that chaos strikes. SIGUSR2 makes an agent hang: its main thread does nothing more for a
 * while, and the thread that beats goes on. A worker starts a process in a session of its own that holds its output, and dies.
 */
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { isMainThread } from "node:worker_threads";

const hangMs = Number(process.env.CHAOS_HANG_MS);
const lookMs = 100;
/** Where it is given, an agent hangs until there is a file of this name, and not for a time. */
const until = process.env.CHAOS_HANG_UNTIL;
const never = new Int32Array(new SharedArrayBuffer(4));

if (isMainThread) {
  process.on("SIGUSR2", () => {
    if (process.env.TREADLE_WORKER_MARK === undefined) {
      const endsMs = performance.now() + hangMs;
      while (until === undefined ? performance.now() < endsMs : !existsSync(until)) Atomics.wait(never, 0, 0, lookMs);
      return;
    }
    spawn("sleep", ["600"], { stdio: "inherit", detached: true }).once("spawn", () =>
      process.kill(process.pid, "SIGKILL"),
    );
  });
}
