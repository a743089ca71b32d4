/** A module of the bench as a process of its own, which prints one line of JSON when it is ready. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { moduleFile, scriptArguments } from "../../processes.ts";

const startTimeoutMs = 60_000;

export type Child = AsyncDisposable & { readonly ready: unknown };

/** `name`: from the folder above, as `./network/far-side`. `inside`: the command by which another is run elsewhere. */
export async function startChild(name: string, boot: object, inside: readonly string[] = []): Promise<Child> {
  const script = fileURLToPath(new URL(moduleFile(name), new URL("..", import.meta.url)));
  const [file, ...args] = [...inside, process.execPath, ...scriptArguments(script), JSON.stringify(boot)];
  const child = spawn(file as string, args, { stdio: ["pipe", "pipe", "inherit"] });
  const dispose = async () => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, "exit");
    child.stdin.end();
    child.kill("SIGKILL");
    await exited;
  };
  const lines = createInterface({ input: child.stdout });
  const died = once(child, "exit").then(() => {
    throw new Error(`the process '${name}' ended at once`);
  });
  died.catch(() => {}); // from here on connections say so
  try {
    const said = once(lines, "line", { signal: AbortSignal.timeout(startTimeoutMs) });
    const [line] = (await Promise.race([said, died])) as [string];
    return { ready: JSON.parse(line), [Symbol.asyncDispose]: dispose };
  } catch (error) {
    await dispose();
    throw error;
  }
}
