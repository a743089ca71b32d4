import { join } from "node:path";
import { prepareDocker } from "../../packages/actions/test/support/docker-engine.ts";
import { projectRoot } from "../support/project.ts";
import { bubblewrap } from "../support/sandbox-programs.ts";
import { type MachineOptions, runInMachine } from "./virtual-machine.ts";

/** Runs a command of Node with the programs that tests unpack: nothing can be fetched there. */
export async function nodeInMachine(
  words: readonly string[],
  options: Omit<MachineOptions, "environment">,
): ReturnType<typeof runInMachine> {
  const folders = await Promise.all([bubblewrap(), prepareDocker().then(({ programs }) => programs)]);
  const { CI = "", TREADLE_SEED = "1", TREADLE_COMPILED = "", PATH = "" } = process.env;
  const path = [PATH, ...folders.map((folder) => join(folder, "usr/bin"))].join(":");
  return runInMachine([process.execPath, ...words], projectRoot, {
    ...options,
    environment: { CI, TREADLE_SEED, TREADLE_COMPILED, NO_COLOR: "1", PATH: path },
  });
}

/** `words` are vitest's own: files, `-t`, and so on. */
export function testInMachine(
  words: readonly string[],
  options: Omit<MachineOptions, "environment">,
): ReturnType<typeof runInMachine> {
  const config = "test/virtual-machine/vitest.config.ts";
  return nodeInMachine(["node_modules/vitest/vitest.mjs", "run", "--config", config, ...words], options);
}
