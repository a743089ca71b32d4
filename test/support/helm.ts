/**
 * Helm for tests: the one in PATH, else one in the cache folder, which is built from its sources where `CI` is set and Go is
 * there: it has no package to install from. That takes minutes, once a machine.
 */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, rename, rm } from "node:fs/promises";
import { delimiter, join } from "node:path";
import { promisify } from "node:util";
import { environmentAt } from "./python-environment.ts";

const run = promisify(execFile);

const version = "3.17.4";

/** Undefined, with the reason on standard error, where there is none. */
export async function findHelm(): Promise<string | undefined> {
  const folders = (process.env["PATH"] ?? "").split(delimiter);
  const cache = environmentAt(`helm-${version}`);
  const found = [...folders, cache].map((folder) => join(folder, "helm")).find((path) => existsSync(path));
  if (found !== undefined) return found;
  if (!process.env["CI"]) {
    console.warn(
      "no Helm here: the chart is not rendered; install helm, or set CI=true where Go is, which builds it once",
    );
    return undefined;
  }
  try {
    return await build(cache);
  } catch (error) {
    console.warn(
      `no Helm here, and none can be built: ${(error as Error).message.split("\n")[0]}; the chart is not rendered`,
    );
    return undefined;
  }
}

/** Beside its place: one that is half made is nobody's. */
async function build(cache: string): Promise<string> {
  await mkdir(join(cache, ".."), { recursive: true });
  const beside = await mkdtemp(`${cache}-`);
  try {
    const env = { ...process.env, GOBIN: beside };
    await run("go", ["install", "-ldflags=-s -w", `helm.sh/helm/v3/cmd/helm@v${version}`], { env });
    await rename(beside, cache).catch((error) => {
      // Somebody else was faster.
      if (!existsSync(cache)) throw error;
    });
  } finally {
    await rm(beside, { recursive: true, force: true });
  }
  return join(cache, "helm");
}
