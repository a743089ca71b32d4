import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";

export const treadle = fileURLToPath(new URL("../../../cli/bin/treadle.js", import.meta.url));

/** `treadle actions serve` as a user starts it, once it says where it serves. */
export const startService = (config: string) => startProcess(["serve", config], / served at (\S+),/);

/** `treadle actions host` likewise. */
export const startHost = (...args: readonly string[]) => startProcess(["host", ...args], / offered at (\S+)\n/);

async function startProcess(args: readonly string[], says: RegExp) {
  const child = spawn(process.execPath, [treadle, "actions", ...args], { stdio: ["ignore", "pipe", "pipe"] });
  let output = "";
  for (const stream of [child.stdout, child.stderr])
    stream.on("data", (bytes) => {
      output += bytes;
    });
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  const kill = async (): Promise<void> => {
    child.kill("SIGKILL");
    await ended;
  };
  while (!/ isolation: .*\n/.test(output)) {
    if (child.exitCode !== null) throw new Error(output);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  const [, address] = says.exec(output) as unknown as [string, string];
  return { child, ended, kill, address, output: () => output };
}
