import { setTimeout as delay } from "node:timers/promises";
import { TreadleError } from "@treadle/contracts";
import type Docker from "dockerode";
import { startTimeoutMs } from "./container-processes.ts";
import type { DockerEngine, EngineExec } from "./docker-engine.ts";
import { quoted } from "./held-shell.ts";
import { beginning } from "./waiting-command.ts";

/** What has entered the container, and is told what to become. */
export type Entered = EngineExec & {
  readonly name: string;
  /** of its first process, in the container, where the kernel lists none of its processes */
  insidePid: number | undefined;
  /** on this machine, where it lists them */
  pid: number | undefined;
  hasEnded: boolean;
};

/**
 * A shell that becomes what one line tells it, and leaves the rest of its input to that: it reads byte by byte, which `head`
 * of some images does not. `n` is a line feed, in words that have one.
 */
export const becomeWhatIsTold = `n=$(printf '\\nx'); n=\${n%x}; IFS= read -r line && echo ${beginning} && eval "$line"`;
export const told = (words: readonly string[]): string =>
  `exec env -i ${words.map((word) => quoted(word).replaceAll("\n", `'"$n"'`)).join(" ")}\n`;

/** Of its first process, on the engine's machine. The engine answers a start a moment before the process is there. */
export async function hostPid(engine: DockerEngine, exec: Docker.Exec): Promise<number> {
  const startedMs = performance.now();
  for (;;) {
    const { Pid, ExitCode, Running } = await engine.call("exec inspect", exec.inspect());
    if (Pid > 0) return Pid;
    if (!Running && ExitCode !== null && ExitCode !== 0)
      throw new TreadleError("sandbox.failed", `a command did not start in its container: exit code ${ExitCode}`);
    if (performance.now() - startedMs > startTimeoutMs)
      throw new TreadleError("sandbox.failed", `a command did not start in its container within ${startTimeoutMs} ms`);
    await delay(1);
  }
}
