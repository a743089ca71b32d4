/** Devices as files: who computes on one has a file of its name, and throws where another process that lives has it. */
import { readFileSync } from "node:fs";
import { readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";

export async function computing(
  devices: readonly string[],
  folder: string | undefined,
  work: () => Promise<void>,
): Promise<void> {
  const files = folder === undefined ? [] : devices.map((device) => join(folder, device));
  for (const file of files) await claim(file);
  await work();
  for (const file of files) await rm(file);
}

async function claim(file: string): Promise<void> {
  try {
    await writeFile(file, String(process.pid), { flag: "wx" });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    const holder = Number(await readFile(file, "utf8"));
    if (holder !== process.pid && isThere(holder))
      throw new Error(`two compute on '${file}': ${holder} and ${process.pid}`);
    await writeFile(file, String(process.pid));
  }
}

/** One that has ended stays in the list until it is reaped, and has no device any more. */
function isThere(pid: number): boolean {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
    return !/^[ZX]/.test(stat.slice(stat.lastIndexOf(")") + 2));
  } catch {
    return false; // it died with the device
  }
}
