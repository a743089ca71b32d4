/** A mount namespace of this test's own, in which small file systems can be mounted without being root. */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { promisify } from "node:util";

const execute = promisify(execFile);

export class MountNamespace {
  readonly #holder: ChildProcess;

  private constructor(holder: ChildProcess) {
    this.#holder = holder;
  }

  /** Answers with the reason where the system does not allow it. */
  static async open(): Promise<MountNamespace | string> {
    const holder = spawn("unshare", ["-Ur", "-m", "sh", "-c", "mount -t tmpfs none /mnt && echo ready && exec cat"], {
      stdio: ["pipe", "pipe", "pipe"],
    });
    let said = "";
    holder.stderr.on("data", (bytes) => {
      said += bytes;
    });
    const ready = once(holder.stdout, "data").then(() => true);
    const ended = once(holder, "close").then(() => false);
    const failed = once(holder, "error").then(([error]) => {
      said += (error as Error).message;
      return false;
    });
    if (await Promise.race([ready, ended, failed])) return new MountNamespace(holder);
    return `no mount namespace: ${said.trim()}`;
  }

  /** The command that runs a command in here, in a working folder. */
  command(folder: string, command: readonly string[]): [string, ...string[]] {
    const enter = ["--user", "--mount", "--preserve-credentials", "sh", "-c", 'cd "$1" && shift && exec "$@"', "sh"];
    return ["nsenter", `--target=${this.#holder.pid}`, ...enter, folder, ...command];
  }

  /** Where a path of this namespace is seen from outside. */
  outside(path: string): string {
    return `/proc/${this.#holder.pid}/root${path}`;
  }

  /** Runs a shell script with arguments `$1`, `$2`, … */
  async shell(script: string, ...args: readonly string[]): Promise<void> {
    const [command, ...rest] = this.command("/", ["sh", "-ec", script, "sh", ...args]);
    await execute(command, rest);
  }

  /** Ends it, and with it every mount. */
  async close(): Promise<void> {
    const closed = once(this.#holder, "close");
    this.#holder.kill("SIGKILL");
    await closed;
  }
}
