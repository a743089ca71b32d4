/** What arrives on a worker's links may name code that is here, and ask for what its sender may (WH6 of `worker-host.ts`). */
import { resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { type CallRequest, TreadleError, type WorkerBoot } from "@treadle/contracts";
import { programRights } from "@treadle/contracts/program-rights";
import { passChannels } from "../author/group/call-arguments.ts";
import { checkCode, loadModule, packagesRoot } from "../author/module-loader.ts";

/** WH6: the same module below this machine's project root. */
export async function moduleHere(module: string, { remote }: WorkerBoot): Promise<string> {
  if (remote === undefined) return module;
  const { from, to } = remote.projectRoot;
  const here = module.startsWith(from) ? to + module.slice(from.length) : module;
  await checkCode(here, [fileURLToPath(to), packagesRoot]);
  return here;
}

/** A module that the configuration names, which on a node comes from another machine: WH6 holds for it. `path`: from this project's root. */
export async function moduleOfProject(path: string, { remote }: WorkerBoot): Promise<Record<string, unknown>> {
  const root = remote === undefined ? process.cwd() : fileURLToPath(remote.projectRoot.to);
  const module = pathToFileURL(resolve(root, path)).href;
  if (remote !== undefined || programRights() !== undefined) await checkCode(module, [root]);
  return loadModule(module);
}

/** WH6: whoever has the run's token may call, but neither in the runner's order nor with what only the workflow passes. */
export function refuseOfPeers({ sequence, saveIn, args }: CallRequest): void {
  if (sequence === 0 && saveIn === undefined && !passChannels(args)) return;
  throw new TreadleError(
    "workflow.invalid",
    "a worker passed a channel, a turn or a path to save to another worker; only the workflow passes these, by way of the runner",
  );
}
