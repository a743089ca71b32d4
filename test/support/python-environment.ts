/** Environments of Python that tests need, each made once in the cache folder. */
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";

const cache = join(process.env["XDG_CACHE_HOME"] ?? join(homedir(), ".cache"), "treadle");

export const environmentAt = (name: string): string => join(cache, name);

/** Beside its place: one that is half made is nobody's. It is used by its interpreter alone, which may be moved. */
export function makeEnvironment(
  name: string,
  install: (pip: (...words: string[]) => void, folder: string) => void,
): void {
  const environment = environmentAt(name);
  mkdirSync(cache, { recursive: true });
  const beside = mkdtempSync(`${environment}-`);
  const pip = (...words: string[]) => {
    const python = join(beside, "bin/python");
    const command = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", ...words];
    execFileSync(python, command, { stdio: "inherit" });
  };
  try {
    execFileSync("python3", ["-m", "venv", beside], { stdio: "inherit" });
    install(pip, beside);
    if (!existsSync(environment)) renameSync(beside, environment);
  } finally {
    rmSync(beside, { recursive: true, force: true });
  }
}
