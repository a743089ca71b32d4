import type { PassThrough } from "node:stream";
import { TreadleError } from "@treadle/contracts";

/** Leaves the rest in the stream. Empty when it ends before. */
export function firstLine(stream: PassThrough, timeoutMs: number): Promise<string> {
  return new Promise((resolve, reject) => {
    let seen = Buffer.alloc(0);
    const finish = (line: string): void => {
      clearTimeout(timer);
      stream.off("readable", look);
      stream.off("end", end);
      resolve(line);
    };
    const end = (): void => finish(seen.toString());
    const look = (): void => {
      for (let chunk = stream.read() as Buffer | null; chunk !== null; chunk = stream.read() as Buffer | null) {
        seen = Buffer.concat([seen, chunk]);
        const at = seen.indexOf("\n");
        if (at < 0) continue;
        const rest = seen.subarray(at + 1);
        finish(seen.toString("utf8", 0, at));
        if (rest.length > 0) stream.unshift(rest);
        return;
      }
    };
    const timer = setTimeout(() => {
      stream.off("readable", look);
      stream.off("end", end);
      reject(new TreadleError("sandbox.failed", `a container said nothing within ${timeoutMs} ms`));
    }, timeoutMs);
    stream.on("readable", look);
    stream.once("end", end);
    look();
  });
}
