/**
 * What starts one shell after another in a sandbox, and tells how each ended: a small shell outside of the sandbox's
 * namespaces, and in its control group, so that no process has to be moved for an action.
 *
 * Owned here: the supervisor's process, the shell that waits for the next action, the three streams between them and us.
 *
 *     orders    us → the waiting shell, which reads one program, and closes it before it begins
 *     marks     us → supervisor: one line a turn, which it prints on `data` before it starts the next shell
 *     data      action → us: what it prints
 *     statuses  supervisor → us: the exit status of each shell, as `wait` returned it
 *
 * SU1 an exit status comes from the supervisor's `wait`, over a stream that no process of the sandbox ever holds; nothing
 *    that is printed is taken for it. No process inside can see, signal or trace the supervisor.
 * SU2 the mark that ends an action's output is drawn once nothing of the action lives, so that it cannot have printed it.
 * SU3 the next shell enters the sandbox once nothing of the action before lives: nobody is there to change what it becomes.
 *    Where something lives, the supervisor and all of its group end.
 * SU4 a shell that ends before it has read its program ends the supervisor: a program is run once or not at all.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { PassThrough, Readable, Writable } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import { TreadleError } from "@treadle/contracts";
import type { CommandHost, RunningCommand } from "./command.ts";
import { wholeProgram } from "./held-shell.ts";

/** The control group in which a supervisor and what it starts are. */
export type SupervisedGroup = {
  /** tasks of any kind, those that have ended and wait to be told included */
  numTasks(): number;
  /** ends everything for sure; resolves when nothing is left */
  kill(): Promise<void>;
};

export type SupervisorOptions = {
  /** arguments of `/bin/sh` that join the groups, and then become the given command */
  joining: (command: readonly string[]) => readonly string[];
  /** shell text of each shell before it enters */
  readonly beginning: string;
  /** enters the namespaces, gives up all rights, and becomes a shell that reads its program from its input */
  readonly entering: readonly string[];
  readonly path: string;
  readonly group: SupervisedGroup;
};

/** After an action its shell's parent may still have to be told of those that it left: for so long at most. */
const settleMs = 20;

const supervise = (beginning: string): string =>
  `while read -r mark; do printf "%s" "$mark"; (${beginning}; exec "$@") <&4 3>&- 4<&-; echo "$?" >&3; done`;

type End = { readonly code: number | null; readonly signal: NodeJS.Signals | null };

type Turn = {
  readonly stdout: PassThrough;
  readonly begin: Buffer;
  hasBegun: boolean;
  /** what came before `begin` was complete, or after the end was asked for */
  held: Buffer;
  status: number | undefined;
  /** drawn when the action has ended (SU2) */
  mark: Buffer | undefined;
  readonly resolve: (end: End) => void;
  readonly reject: (error: unknown) => void;
};

const nothing: Buffer = Buffer.alloc(0);

export class Supervisor {
  readonly #child: ChildProcess;
  readonly #group: SupervisedGroup;
  #turn: Turn | undefined;
  #statuses = "";
  #complaint = "";
  #hasEnded = false;
  #killed: Promise<void> | undefined;

  constructor({ joining, beginning, entering, path, group }: SupervisorOptions) {
    this.#group = group;
    const args = joining(["/bin/sh", "-c", supervise(beginning), "treadle-supervisor", ...entering]);
    this.#child = spawn("/bin/sh", args, {
      stdio: ["pipe", "pipe", "pipe", "pipe", "pipe"],
      env: { PATH: path },
      detached: true,
    });
    const [marks, data, complaints, statuses, orders] = this.#child.stdio as unknown as [
      Writable,
      Readable,
      Readable,
      Readable,
      Writable,
    ];
    // It may end without reading what it was told.
    for (const stream of [marks, orders]) stream.on("error", () => {});
    data.on("data", (chunk: Buffer) => this.#received(chunk));
    complaints.on("data", (chunk: Buffer) => {
      this.#complaint = `${this.#complaint}${chunk}`.slice(-2000);
    });
    statuses.on("data", (chunk: Buffer) => this.#reported(chunk));
    this.#child.once("error", (error) => {
      this.#complaint = error.message;
      this.#ended();
    });
    this.#child.once("close", () => this.#ended());
    this.#mark(nothing);
  }

  get hasEnded(): boolean {
    return this.#hasEnded || this.#killed !== undefined;
  }

  /** Of one program, when that before it has ended. Its output comes on `stdout` alone. */
  host(program: string): CommandHost {
    let isOver = false;
    return {
      start: () => {
        const running = this.#start(program);
        running.exited.then(
          () => {
            isOver = true;
          },
          () => {},
        );
        return running;
      },
      signal: () => {},
      // SU3 nothing of it is left.
      kill: async () => (isOver ? undefined : this.kill()),
    };
  }

  /** Ends it and everything that it started. */
  kill(): Promise<void> {
    if (this.#killed === undefined) {
      this.#killed = this.#group.kill();
      this.#killed.catch(() => {}); // whoever waits for it hears of it
    }
    return this.#killed;
  }

  #start(program: string): RunningCommand {
    const begin = randomBytes(12).toString("hex");
    const stdout = new PassThrough();
    const exited = new Promise<End>((resolve, reject) => {
      const state = { hasBegun: false, held: nothing, status: undefined, mark: undefined };
      this.#turn = { stdout, begin: Buffer.from(begin), ...state, resolve, reject };
    });
    (this.#child.stdio[4] as Writable).write(wholeProgram(program, begin));
    if (this.#hasEnded) this.#ended();
    const stdin = new Writable({ write: (_chunk, _encoding, done) => done() });
    return { stdin, stdout, stderr: Readable.from([]), exited };
  }

  #received(chunk: Buffer): void {
    const turn = this.#turn;
    if (turn === undefined) return;
    if (turn.hasBegun && turn.mark === undefined) {
      turn.stdout.write(chunk);
      return;
    }
    turn.held = turn.held.length === 0 ? chunk : Buffer.concat([turn.held, chunk]);
    if (!turn.hasBegun && turn.held.subarray(0, turn.begin.length).equals(turn.begin)) {
      turn.hasBegun = true;
      turn.held = turn.held.subarray(turn.begin.length);
      if (turn.mark === undefined) {
        turn.stdout.write(turn.held);
        turn.held = nothing;
      }
    }
    const at = turn.mark === undefined ? -1 : turn.held.indexOf(turn.mark);
    if (at >= 0) this.#settle(turn, turn.held.subarray(0, at));
  }

  #reported(chunk: Buffer): void {
    this.#statuses += chunk.toString("latin1");
    const end = this.#statuses.indexOf("\n");
    if (end < 0) return;
    const status = Number(this.#statuses.slice(0, end));
    this.#statuses = this.#statuses.slice(end + 1);
    // Whoever waited for a program has died (SU4).
    if (this.#turn === undefined) void this.kill();
    else {
      const turn = this.#turn;
      this.#clear(turn, status).catch((error: Error) => {
        turn.stdout.end();
        turn.reject(error);
      });
    }
  }

  /** SU2, SU3 */
  async #clear(turn: Turn, status: number): Promise<void> {
    turn.status = status;
    const startedMs = performance.now();
    let isAlone = this.#group.numTasks() <= 1;
    while (!isAlone && performance.now() - startedMs < settleMs && !this.hasEnded) {
      await delay(1);
      isAlone = this.#group.numTasks() <= 1;
    }
    if (!isAlone) await this.kill();
    if (this.hasEnded) return;
    turn.mark = Buffer.from(randomBytes(12).toString("hex"));
    this.#mark(turn.mark);
  }

  #mark(mark: Buffer): void {
    (this.#child.stdin as Writable).write(Buffer.concat([mark, Buffer.from("\n")]));
  }

  /** Its output is complete. */
  #settle(turn: Turn, rest: Buffer): void {
    this.#turn = undefined;
    const { hasBegun, status } = turn;
    if (hasBegun) turn.stdout.write(rest);
    turn.stdout.end();
    if (hasBegun && status !== undefined) {
      turn.resolve({ code: status, signal: null });
    } else if (hasBegun || this.#killed !== undefined) {
      turn.resolve({ code: null, signal: "SIGKILL" });
    } else {
      const why = this.#complaint.trim() || `it ended with ${status ?? "its supervisor"}`;
      void this.kill();
      turn.reject(new TreadleError("sandbox.failed", `a shell did not start: ${why}`));
    }
  }

  #ended(): void {
    this.#hasEnded = true;
    if (this.#turn !== undefined) this.#settle(this.#turn, this.#turn.held);
  }
}
