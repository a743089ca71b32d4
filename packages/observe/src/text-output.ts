import { once } from "node:events";
import { createWriteStream } from "node:fs";
import { finished } from "node:stream/promises";

/** Writes a text file piece by piece with back-pressure, in blocks of about 64 KiB. */
export async function writeTextFile(path: string, pieces: AsyncIterable<string>): Promise<void> {
  const stream = createWriteStream(path);
  const done = finished(stream);
  done.catch(() => {});
  let block = "";
  for await (const piece of pieces) {
    block += piece;
    if (block.length < 65_536) continue;
    if (!stream.write(block)) await Promise.race([once(stream, "drain"), done]);
    block = "";
  }
  stream.end(block);
  await done;
}
