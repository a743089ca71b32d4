import type { Readable } from "node:stream";

/**
 * Calls `onLine` for each line of a stream of UTF-8, the first `maxLength` characters of it: a process that writes one without
 * an end takes no memory of whoever reads it. A carriage return ends a line, too, as of programs that show how far they are.
 */
export function eachLine(stream: Readable | null | undefined, maxLength: number, onLine: (line: string) => void): void {
  if (!stream) return;
  let line = "";
  let endedByReturn = false;
  stream.setEncoding("utf8");
  stream.on("data", (text: string) => {
    const pieces = (endedByReturn && text.startsWith("\n") ? text.slice(1) : text).split(/\r\n|\n|\r/);
    endedByReturn = text.endsWith("\r");
    for (const [i, piece] of pieces.entries()) {
      line += piece.slice(0, maxLength - line.length);
      if (i === pieces.length - 1) break;
      onLine(line);
      line = "";
    }
  });
  stream.on("end", () => {
    if (line !== "") onLine(line);
  });
  stream.on("error", () => {});
}
