/**
 * The process of one run that shares devices with others: started, heard, and ended with everything that it started.
 *
 * It talks to this process alone, over the channel that Node opens between a process and its child: nothing listens anywhere.
 * When this process is gone, that of the run notices, and ends itself.
 */
import { type ChildProcess, fork } from "node:child_process";
import { PooledRunMessage, type PoolReply, pooledRunVariable } from "@treadle/contracts";
import { endRun } from "./run-process.ts";

export type PooledProcessOptions = {
  /** script of the command line, and its arguments */
  readonly script: string;
  readonly args: readonly string[];
  readonly onMessage: (message: PooledRunMessage) => void;
  /** it said what nobody of it says, and is ended */
  readonly onInvalid: (why: string) => void;
};

export type ProcessEnd = { readonly code: number | null; readonly signal: string | null };

export class PooledProcess {
  readonly #child: ChildProcess;
  readonly #mark = crypto.randomUUID();
  /** resolves when neither it nor anything that it started is left */
  readonly gone: Promise<ProcessEnd>;

  constructor({ script, args, onMessage, onInvalid }: PooledProcessOptions) {
    this.#child = fork(script, [...args], {
      // A signal from the terminal comes by this process, which knows how often it has come.
      detached: true,
      stdio: ["ignore", "ignore", "inherit", "ipc"],
      serialization: "advanced", // metrics may be NaN
      env: { ...process.env, [pooledRunVariable]: this.#mark },
    });
    this.#child.on("message", (message) => {
      const { data, error } = PooledRunMessage.safeParse(message);
      if (data !== undefined) onMessage(data);
      else {
        onInvalid(`its process said what is no message: ${error?.message}`);
        this.signal("SIGKILL");
      }
    });
    const ended = new Promise<ProcessEnd>((resolve) => {
      this.#child.once("exit", (code, signal) => resolve({ code, signal }));
      this.#child.on("error", (error) => {
        onInvalid(error.message);
        if (this.#child.pid === undefined) resolve({ code: null, signal: null }); // it never began
      });
    });
    this.gone = ended.then(async (end) => {
      await endRun(this.#mark);
      return end;
    });
  }

  reply(message: PoolReply): void {
    if (this.#child.connected) this.#child.send(message, () => {}); // one that has just ended needs no answer
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }
}
