/** Devices as files: who computes on one has a file of its name, and throws where another process that lives has it. */
import { readFileSync } from "node:fs";
import { appendFile, link, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";

/** What was thrown, for those that nobody hears any more. */
export const conflictsFile = "conflicts";

export async function computing(
  devices: readonly string[],
  folder: string | undefined,
  work: () => Promise<void>,
): Promise<void> {
  const claims = folder === undefined ? [] : devices.map((device) => join(folder, device));
  for (const file of claims) await claim(file);
  await work();
  for (const file of claims) await rm(file);
}

async function claim(file: string): Promise<void> {
  const own = `${file}.${process.pid}`;
  await writeFile(own, String(process.pid));
  try {
    await link(own, file); // as a whole, or not at all
    await rm(own);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    const holder = Number(await readFile(file, "utf8").catch(() => "")); // it may have gone since
    if (holder > 0 && holder !== process.pid && isThere(holder)) {
      const message = `two compute on '${file}': ${holder} and ${process.pid}`;
      await appendFile(join(file, "..", conflictsFile), `${message}\n`);
      throw new Error(message);
    }
    await rename(own, file);
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
