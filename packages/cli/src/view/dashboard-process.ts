/**
 * The dashboard beside a run: a process of its own, so that what people look at costs the run nothing but its events, which it
 * writes anyway. It ends with the run's process.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";

export type DashboardProcess = { close(): void };

/** `onLine`: what it says, such as its address, or why there is none. */
export function startDashboardProcess(runsRoot: string, onLine: (text: string) => void): DashboardProcess {
  const child: ChildProcess = spawn(
    process.execPath,
    [...process.execArgv, process.argv[1] as string, "dashboard", "--runs", runsRoot, "--with-parent"],
    { stdio: ["pipe", "pipe", "pipe"] },
  );
  child.on("error", (error) => onLine(`the dashboard cannot be started: ${error.message}`));
  for (const stream of [child.stdout, child.stderr]) {
    if (stream) createInterface({ input: stream }).on("line", (line) => line.trim() !== "" && onLine(line));
  }
  child.unref();
  return {
    close() {
      child.kill("SIGTERM");
      // Its pipes would keep this process.
      for (const stream of [child.stdin, child.stdout, child.stderr]) stream?.destroy();
    },
  };
}
