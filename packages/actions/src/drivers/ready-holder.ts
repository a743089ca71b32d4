import type { ChildProcess } from "node:child_process";
import { TreadleError } from "@treadle/contracts";

const startTimeoutMs = 10_000;

/** Waits until the sandbox is complete; returns the id, seen from here, of the first process inside. */
export function readyHolder(holder: ChildProcess): Promise<number> {
  return new Promise((resolve, reject) => {
    let information = "";
    let output = "";
    let complaint = "";
    const fail = (why: string): void => {
      clearTimeout(timer);
      reject(new TreadleError("sandbox.failed", `the sandbox did not start: ${why}`));
    };
    const timer = setTimeout(() => fail(`not ready within ${startTimeoutMs} ms`), startTimeoutMs);
    const check = (): void => {
      const pid = /"child-pid":\s*(\d+)/.exec(information)?.[1];
      if (pid === undefined || !output.includes("ready")) return;
      clearTimeout(timer);
      for (const stream of holder.stdio) stream?.destroy();
      resolve(Number(pid));
    };
    holder.stdout!.on("data", (chunk: Buffer) => {
      output += chunk;
      check();
    });
    holder.stderr!.on("data", (chunk: Buffer) => {
      complaint += chunk;
    });
    holder.stdio[3]!.on("data", (chunk: Buffer) => {
      information += chunk;
      check();
    });
    holder.once("error", (error) => fail(error.message));
    holder.once("exit", (code) => fail(complaint.trim() || `it ended with ${code}`));
  });
}
