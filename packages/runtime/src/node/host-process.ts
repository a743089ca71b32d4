/** Starts the process that hosts a worker; what it is to be it reads from its standard input, so that it may wait for that. */
import { type ChildProcess, type SpawnOptions, spawn } from "node:child_process";
import { join } from "node:path";
import { type Interpreter, TreadleError, type WorkerBoot, type WorkerInput } from "@treadle/contracts";
import { packageFolder } from "@treadle/contracts/package-folder";
import { type ProgramRights, programRightsVariable } from "@treadle/contracts/program-rights";
import { Descendants } from "./descendants.ts";
import { isCompiled } from "./treadle-code.ts";

export type HostStart = {
  readonly interpreter: Interpreter;
  /** bounds the heap of its JavaScript */
  readonly memoryLimitMiB?: number | undefined;
  readonly env: Readonly<Record<string, string>>;
  /** what it may start; absent: whatever it likes */
  readonly rights: ProgramRights | undefined;
  readonly projectRoot: string;
  /** a module whose imports of Treadle are loaded while it waits; absent: it waits for nothing */
  readonly ahead?: string | undefined;
};

export class HostProcess {
  readonly child: ChildProcess;
  readonly descendants: Descendants;

  private constructor(child: ChildProcess, descendants: Descendants) {
    this.child = child;
    this.descendants = descendants;
    if (child.pid !== undefined) descendants.adopt(child.pid);
    child.stdin?.on("error", () => {}); // it may die before it has read
  }

  /** Rejects with `worker.died` or `worker.load-failed` for what the operating system refuses at once; all else the child says. */
  static async start(node: string, start: HostStart): Promise<HostProcess> {
    const { interpreter, memoryLimitMiB, env, rights, projectRoot, ahead } = start;
    const heap = memoryLimitMiB === undefined ? [] : [`--max-old-space-size=${Math.ceil(memoryLimitMiB)}`];
    const args = [...interpreter.flags, ...heap, ...loaderFlags, hostEntry, ...(ahead === undefined ? [] : [ahead])];
    const descendants = new Descendants();
    const may = rights && { [programRightsVariable]: JSON.stringify(rights) }; // PGR1
    const child = startProcess(interpreter.command, args, {
      detached: true, // NA1: leader of its own process group
      stdio: ["pipe", "pipe", "pipe", "pipe"],
      env: { ...withoutSecrets(process.env), ...env, ...may, ...descendants.environment },
      cwd: projectRoot,
    });
    if (!(child instanceof Error)) return new HostProcess(child, descendants);
    await descendants.end();
    const isTooLong = (child as NodeJS.ErrnoException).code === "E2BIG";
    throw new TreadleError(
      isTooLong ? "worker.load-failed" : "worker.died",
      `node '${node}' cannot start a worker: ${child.message}${isTooLong ? "; its environment is longer than the operating system takes: put less in it" : ""}`,
      { cause: child },
    );
  }

  /** Once: which worker it is, and the variables that it could not be started with. */
  become(boot: WorkerBoot, env: Readonly<Record<string, string>>): void {
    this.child.stdin?.end(JSON.stringify({ boot, env } satisfies WorkerInput));
  }

  /** With its process group. A stopped process (SIGSTOP) takes SIGKILL at once; nothing gentler reaches it. */
  kill(): void {
    if (this.child.pid === undefined) return;
    try {
      process.kill(-this.child.pid, "SIGKILL");
    } catch {
      // the whole group is gone already
    }
  }

  /** Ends it and whatever it has started before this returns, as this process is about to exit. */
  endNow(): void {
    this.kill();
    this.descendants.endNow();
  }
}

const hostEntry = join(packageFolder(import.meta.url), isCompiled ? "dist/worker/main.js" : "src/worker/main.ts");
const loaderFlags = isCompiled ? [] : ["--conditions=source", "--import", import.meta.resolve("tsx")];

/** What the operating system refuses at once is thrown by `spawn`, and all else said by the child. */
function startProcess(command: string, args: readonly string[], options: SpawnOptions): ChildProcess | Error {
  try {
    return spawn(command, args, options);
  } catch (error) {
    return error as Error;
  }
}

/** Workers run a user's code, which has no business with the control plane, nor with who may look. */
function withoutSecrets(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(
    Object.entries(env).filter(([name]) => !/^TREADLE_(NATS_|METRICS_TOKEN$|DASHBOARD_TOKEN$)/.test(name)),
  );
}
