import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";

export const treadle = fileURLToPath(new URL("../../../cli/bin/treadle.js", import.meta.url));

/** `treadle actions serve` as a user starts it, once it says where it serves. */
export async function startService(config: string) {
  const child = spawn(process.execPath, [treadle, "actions", "serve", config], { stdio: ["ignore", "pipe", "pipe"] });
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
  const [, address] = /served at (\S+),/.exec(output) as unknown as [string, string];
  return { child, ended, kill, address, output: () => output };
}
