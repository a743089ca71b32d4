import { setTimeout as delay } from "node:timers/promises";
import { TreadleError } from "@treadle/contracts";
import type Docker from "dockerode";
import type { DockerEngine } from "./docker-engine.ts";
import { firstLine } from "./first-line.ts";
import type { CommandSignal } from "./sandbox.ts";
import { signalScript } from "./signal-script.ts";

export const startTimeoutMs = 30_000;
/** that the container keeps for itself: its first process, and what that waits for */
const numKept = 2;
const maxRounds = 20;
/** Of an exec that ends others; they may have stopped it. */
const roundMs = 5000;
/** What has ended is there for a moment longer. */
const numLooks = 2;

/**
 * All that the user may signal, but itself. The kernel signals them in one step in which none can start another, so that nothing is
 * missed that leaves its process for a new one again and again. What holds the container is root's: only for root is there a list.
 */
const endScript = `[ -O /proc/1 ] || kill -9 -1\n${signalScript}`;

export type ContainerProcessesOptions = {
  readonly engine: DockerEngine;
  readonly container: Docker.Container;
  /** whom commands run as */
  readonly user: string;
  readonly isGvisor: boolean;
  /** in the container: what its first process waits for */
  readonly keeper: number;
};

/**
 * The processes of commands in a container, where no list of them in the kernel is in reach (DK1): execs find and end them, and
 * nothing that these say is believed. Whether the container is empty is what the engine sees in it from outside, while it is
 * paused; under gVisor, what root counts inside.
 */
export class ContainerProcesses {
  readonly #options: ContainerProcessesOptions;
  /** first processes, inside, of what runs */
  readonly #inside = new Set<number>();
  #isCounted = false;
  #isClear = true;

  constructor(options: ContainerProcessesOptions) {
    this.#options = options;
  }

  /** Before anything runs: whether it can be told that nothing does. */
  async begin(): Promise<void> {
    this.#isCounted = await this.#isEmpty().catch(() => false);
  }

  /** Why it can never be told that nothing runs. */
  get lacks(): string | undefined {
    return this.#isCounted
      ? undefined
      : "the Docker engine does not pause a container and list its processes ('docker pause', 'docker top'), so that nobody knows whether anything runs beside an action; see why it does not, or use docker.fastPath as root beside the engine";
  }

  /** A command is about to begin. */
  enters(): void {
    this.#isClear = false;
  }

  add(pid: number): void {
    this.#inside.add(pid);
  }

  has(pid: number): boolean {
    return this.#inside.has(pid);
  }

  /** What the command has started; it may tell a wrong number, and then nothing is signalled. */
  async signal(pid: number, signal: CommandSignal): Promise<number> {
    const orphans = [...this.#inside].every((one) => one === pid);
    const said = await this.#exec(signalScript, [signal.slice(3), orphans ? "1" : "0", String(pid), this.#keeper]);
    const left = Number(said);
    if (said === undefined || !Number.isInteger(left))
      throw new TreadleError("sandbox.failed", "nothing was signalled");
    return left;
  }

  /** Of a command beside which others run. */
  async end(pid: number): Promise<void> {
    for (let round = 0; (await this.signal(pid, "SIGKILL")) > 0; round++) if (round === maxRounds) throw doNotEnd();
    this.#inside.delete(pid);
  }

  /** Everything, when nothing else is to run; `isOver`: the first process of the last command has ended. */
  async clear(isOver: boolean): Promise<void> {
    if (this.#isClear) return;
    const pids = [...this.#inside].join(" ");
    for (let round = 0; ; round++) {
      if ((isOver || round > 0) && (await this.#isEmptySoon())) break;
      if (round === maxRounds) throw doNotEnd();
      // Those that it is to end may end it first, even before it begins.
      const said = await this.#exec(endScript, ["KILL", "1", pids, this.#keeper]).catch(() => undefined);
      if (!this.#isCounted && said === "0") break;
    }
    this.#inside.clear();
    this.#isClear = true;
  }

  get #keeper(): string {
    return String(this.#options.keeper);
  }

  async #isEmptySoon(): Promise<boolean> {
    if (!this.#isCounted) return false;
    for (let look = 0; look < numLooks; look++) if (await this.#isEmpty()) return true;
    return false;
  }

  async #isEmpty(): Promise<boolean> {
    const { engine, container, isGvisor } = this.#options;
    // gVisor's kernel lists its processes in one step, to one whom no command may touch.
    if (isGvisor) return (await this.#exec("set -- /proc/[0-9]*; echo $#", [], "0:0")) === String(numKept + 1);
    // Without a pause, one that leaves its process for a new one is on the list as what has ended, and then on none.
    await engine.call("pause", container.pause());
    try {
      const { Processes } = await engine.call("top", container.top({ ps_args: "-eo pid" }));
      return Processes.length === numKept;
    } finally {
      await engine.call("unpause", container.unpause());
    }
  }

  /** Its first line; undefined where it did not end well in time. */
  async #exec(script: string, args: readonly string[], user = this.#options.user): Promise<string | undefined> {
    const { engine, container } = this.#options;
    const { stdin, stdout, stderr, exited } = await engine.exec(container, {
      Cmd: ["/bin/sh", "-c", script, "sh", ...args],
      User: user,
    });
    stdin.end();
    stderr.resume();
    const line = firstLine(stdout, startTimeoutMs).catch(() => undefined);
    const giveUp = new AbortController();
    const code = await Promise.race([
      exited,
      delay(roundMs, undefined, { signal: giveUp.signal, ref: false }).catch(() => undefined),
    ]);
    giveUp.abort();
    stdout.resume();
    return code === 0 ? line : undefined;
  }
}

const doNotEnd = (): TreadleError => new TreadleError("sandbox.failed", "processes did not end after SIGKILL");
