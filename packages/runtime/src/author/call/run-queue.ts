import { openSync, readSync } from "node:fs";

/** Linux counts, for the main thread: nanoseconds on a processor, nanoseconds ready without one, turns. */
const counters = "/proc/self/schedstat";

let file: number | undefined | "none";
const buffer = Buffer.alloc(96);

/**
 * Milliseconds so far in which the process's main thread was ready to run and had no processor: others had them. Undefined
 * where the kernel does not count them.
 */
export function queuedMs(): number | undefined {
  if (file === "none") return undefined;
  try {
    file ??= openSync(counters, "r");
    const length = readSync(file, buffer, 0, buffer.length, 0);
    const nanoseconds = Number(buffer.toString("latin1", 0, length).split(" ")[1]);
    if (Number.isFinite(nanoseconds)) return nanoseconds / 1e6;
  } catch {
    // no such file, or none that may be read
  }
  file = "none";
  return undefined;
}
