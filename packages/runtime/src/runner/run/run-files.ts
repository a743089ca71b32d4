/** Files of a run's folder, part by part, for those who look at the run from another machine. */
import { open, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import type { ReadRunFile, RunFilePart } from "@treadle/contracts";
import { redactSecrets } from "@treadle/observe";

/** In base64 well below what a message of NATS may have. */
const maxPartBytes = 256 * 1024;
const maxJsonBytes = 16 * 2 ** 20;

/** A file that is not there, or that is too large to be shown, has nothing. */
export async function readRunFile(folder: string, asked: ReadRunFile): Promise<RunFilePart> {
  const path = join(folder, asked.file);
  const found = await stat(path).catch(() => undefined);
  if (found === undefined) return { version: "", fromByte: 0, sizeBytes: 0, data: "" };
  // What is replaced as a whole is another file each time; what grows is the same one.
  if (path.endsWith(".jsonl")) return readGrowing(path, asked, `${found.ino}`);
  const version = `${found.ino} ${found.mtimeMs} ${found.size}`;
  const fromByte = version === asked.version ? asked.fromByte : 0;
  if (found.size > maxJsonBytes) return { version, fromByte: 0, sizeBytes: 0, data: "" };
  const bytes = Buffer.from(redactSecrets(await readFile(path, "utf8")));
  const data = bytes.subarray(fromByte, fromByte + maxPartBytes).toString("base64");
  return { version, fromByte, sizeBytes: bytes.length, data };
}

async function readGrowing(path: string, asked: ReadRunFile, version: string): Promise<RunFilePart> {
  const file = await open(path, "r");
  try {
    const { size } = await file.stat();
    const fromByte = version === asked.version && asked.fromByte <= size ? asked.fromByte : 0;
    const bytes = Buffer.alloc(Math.min(maxPartBytes, size - fromByte));
    const { bytesRead } = await file.read(bytes, 0, bytes.length, fromByte);
    return { version, fromByte, sizeBytes: size, data: bytes.subarray(0, bytesRead).toString("base64") };
  } finally {
    await file.close();
  }
}
