/** Environments of Python that tests need, each made once in the cache folder. */
import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { mkdir, mkdtemp, rename, rm } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);

const cache = join(process.env["XDG_CACHE_HOME"] ?? join(homedir(), ".cache"), "treadle");

export const environmentAt = (name: string): string => join(cache, name);

/** An environment of these lists of requirements has another name as soon as they change. */
export function environmentOf(prefix: string, lists: readonly string[]): string {
  const hash = createHash("sha256");
  for (const list of lists) hash.update(readFileSync(list));
  return `${prefix}-${hash.digest("hex").slice(0, 12)}`;
}

/** Beside its place: one that is half made is nobody's. It is used by its interpreter alone, which may be moved. */
export async function makeEnvironment(
  name: string,
  install: (pip: (...words: string[]) => Promise<unknown>, folder: string) => Promise<unknown>,
): Promise<void> {
  const environment = environmentAt(name);
  await mkdir(cache, { recursive: true });
  const beside = await mkdtemp(`${environment}-`);
  const pip = (...words: string[]) =>
    run(join(beside, "bin/python"), ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", ...words]);
  try {
    await run("python3", ["-m", "venv", beside]);
    await install(pip, beside);
    await rename(beside, environment).catch((error) => {
      // Somebody else was faster.
      if (!existsSync(environment)) throw error;
    });
  } finally {
    await rm(beside, { recursive: true, force: true });
  }
}
