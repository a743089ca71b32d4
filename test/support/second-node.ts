/**
 * Other versions of Node, from the package registry, each in a cache folder of its own; nothing of them is installed. What needs
 * one is skipped where it cannot be had, and says why; where `CI` is set, it fails.
 */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);
const ownMajor = Number(process.versions.node.split(".")[0]);

/** The path of its program; undefined, with the reason on standard error, where it cannot be had. Throws instead where `CI` is set. */
export async function secondNode(major = ownMajor === 22 ? 20 : 22): Promise<string | undefined> {
  const name = `node-${process.platform}-${process.arch}`;
  const folder = join(process.env["XDG_CACHE_HOME"] ?? join(homedir(), ".cache"), "treadle", `node-${major}`);
  const program = join(folder, "node_modules", name, "bin/node");
  if (existsSync(program)) return program;
  try {
    await mkdir(folder, { recursive: true });
    const args = ["install", "--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--prefix", folder];
    await run("npm", [...args, `${name}@${major}`], { timeout: 120_000 });
    await run(program, ["--version"], { timeout: 30_000 });
    return program;
  } catch (error) {
    const said = (error as { stderr?: string }).stderr?.trim() || (error as Error).message;
    const reason = `no Node ${major} from the package registry: ${said.split("\n")[0]}`;
    if (process.env["CI"]) throw new Error(reason, { cause: error });
    console.warn(`${reason}; what needs it is skipped`);
    return undefined;
  }
}

/** Runs what follows by that program, instead of by this process's own: `startNode`'s `inside`. */
export const insteadOfOwnNode = (program: string): string[] => ["sh", "-c", 'shift; exec "$0" "$@"', program];
