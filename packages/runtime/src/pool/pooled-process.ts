/**
 * The process of one run that shares devices with others: started, heard, and ended with everything that it started.
 *
 * It talks to this process alone, over the channel that Node opens between a process and its child: nothing listens anywhere.
 * When this process is gone, that of the run notices, and ends itself.
 */
import { type ChildProcess, fork } from "node:child_process";
import { setTimeout as delay } from "node:timers/promises";
import { PooledRunMessage, type PoolReply, pooledRunVariable } from "@treadle/contracts";
import { endMarked } from "../node/descendants.ts";

export type PooledProcessOptions = {
  /** script of the command line, and its arguments */
  readonly script: string;
  readonly args: readonly string[];
  readonly onMessage: (message: PooledRunMessage) => void;
};

export type ProcessEnd = { readonly code: number | null; readonly signal: string | null };

const roundMs = 50;

export class PooledProcess {
  readonly #child: ChildProcess;
  readonly #mark = crypto.randomUUID();
  /** resolves when neither it nor anything that it started is left */
  readonly gone: Promise<ProcessEnd>;

  constructor({ script, args, onMessage }: PooledProcessOptions) {
    this.#child = fork(script, [...args], {
      // A signal from the terminal comes by this process, which knows how often it has come.
      detached: true,
      stdio: ["ignore", "ignore", "inherit", "ipc"],
      serialization: "advanced", // metrics may be NaN
      env: { ...process.env, [pooledRunVariable]: this.#mark },
    });
    this.#child.on("message", (message) => onMessage(PooledRunMessage.parse(message)));
    const ended = new Promise<ProcessEnd>((resolve, reject) => {
      this.#child.once("exit", (code, signal) => resolve({ code, signal }));
      this.#child.once("error", reject);
    });
    this.gone = ended.then(async (end) => {
      while (endMarked(pooledRunVariable, this.#mark) > 0) await delay(roundMs);
      return end;
    });
  }

  get pid(): number | undefined {
    return this.#child.pid;
  }

  reply(message: PoolReply): void {
    if (this.#child.connected) this.#child.send(message, () => {}); // one that has just ended needs no answer
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }
}
