/**
 * What starts one shell after another in a sandbox, and tells how each ended: a small shell outside of the sandbox's
 * namespaces, and in its control group, so that no process has to be moved for an action.
 *
 * Owned here: the supervisor's process, the shell that waits for the next action, the three streams between them and us.
 *
 *     orders    us → the waiting shell, which reads one program, and closes it before it begins
 *     marks     us → supervisor: one line a turn, which it prints on `data` when the action has ended; and its leave to do so
 *     data      action → us: what it prints, through a named pipe that only those outside have a name for
 *     statuses  supervisor → us: the exit status of each shell, as `wait` returned it; an empty line asks for leave, `open` says
 *               that the pipe is there
 *
 * SU1 an exit status comes from the supervisor's `wait`, over a stream that no process of the sandbox ever holds; nothing
 *    that is printed is taken for it. No process inside can see, signal or trace the supervisor.
 * SU2 the mark that ends an action's output is known to the supervisor alone, which prints it once nothing of the action lives:
 *    at once where it is alone in its group, and else when we say that it is.
 * SU3 the next shell enters the sandbox once nothing of the action before lives: nobody is there to change what it becomes.
 *    Where something lives, the supervisor and all of its group end.
 * SU4 a shell that ends before it has read its program ends the supervisor: a program is run once or not at all.
 * SU5 each shell has a descriptor of the pipe of its own, and so has the supervisor: what an action does to its output (to wait for
 *    nobody, to shut it) goes with it, but for the pipe's size, and changes none of what is printed after it (HS5).
 */
import { type ChildProcess, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { constants, openSync, readSync, rmSync } from "node:fs";
import { Socket } from "node:net";
import { PassThrough, Readable, Writable } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import { TreadleError } from "@treadle/contracts";
import { readNumber } from "./cgroup.ts";
import type { CommandHost, RunningCommand } from "./command.ts";
import { wholeProgram } from "./held-shell.ts";

/** The control group in which a supervisor and what it starts are. */
export type SupervisedGroup = {
  /** holds the number of its tasks of any kind, those that have ended and wait to be told included */
  readonly tasksFile: string;
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
  /** where its named pipe is made, in a folder that nobody inside sees */
  readonly pipe: string;
  readonly group: SupervisedGroup;
};

/** After an action its shell's parent may still have to be told of those that it left: for so long at most. */
const settleMs = 20;

/** Its arguments are the pipe, the file of tasks, and what each shell becomes. Nobody inside may open the pipe: no shell's output is another's. */
const supervise = (beginning: string): string =>
  `pipe=$1; file=$2; shift 2; mkfifo -m 600 "$pipe" && echo open >&3 && exec >"$pipe" || exit; while read -r mark; do (${beginning}; exec "$@") <&4 >"$pipe" 3>&- 4<&-; status=$?; read -r tasks <"$file"; [ "$tasks" = 1 ] || { echo >&3; read -r leave; }; printf "%s" "$mark"; echo "$status" >&3; done`;

/** Begins with what hardly anything that is printed ends with, so that output seldom waits for what comes after it. */
const markStart = 1;
const drawMark = (): Buffer => Buffer.from(`${String.fromCharCode(markStart)}${randomBytes(12).toString("hex")}`);

type End = { readonly code: number | null; readonly signal: NodeJS.Signals | null };

type Turn = {
  readonly stdout: PassThrough;
  readonly begin: Buffer;
  hasBegun: boolean;
  /** what came before `begin` was complete, or may be a part of the mark */
  held: Buffer;
  /** all of its output is there */
  isWhole: boolean;
  status: number | undefined;
  readonly resolve: (end: End) => void;
  readonly reject: (error: unknown) => void;
};

const nothing: Buffer = Buffer.alloc(0);

export class Supervisor {
  readonly #child: ChildProcess;
  readonly #group: SupervisedGroup;
  readonly #pipe: string;
  #data: PipeReader | undefined;
  #turn: Turn | undefined;
  /** of the shell that waits, or of the turn (SU2) */
  #mark: Buffer = nothing;
  #statuses = "";
  #complaint = "";
  #hasEnded = false;
  #killed: Promise<void> | undefined;
  #isEndedByUs = true;

  constructor({ joining, beginning, entering, path, pipe, group }: SupervisorOptions) {
    this.#group = group;
    this.#pipe = pipe;
    const words = [supervise(beginning), "treadle-supervisor", pipe, group.tasksFile, ...entering];
    const args = joining(["/bin/sh", "-c", ...words]);
    this.#child = spawn("/bin/sh", args, {
      stdio: ["pipe", "ignore", "pipe", "pipe", "pipe"],
      env: { PATH: path },
      detached: true,
    });
    const [marks, , complaints, statuses, orders] = this.#child.stdio as unknown as [
      Writable,
      null,
      Readable,
      Readable,
      Writable,
    ];
    // It may end without reading what it was told.
    for (const stream of [marks, orders]) stream.on("error", () => {});
    complaints.on("data", (chunk: Buffer) => {
      this.#complaint = `${this.#complaint}${chunk}`.slice(-2000);
    });
    statuses.on("data", (chunk: Buffer) => this.#reported(chunk));
    this.#child.once("error", (error) => {
      this.#complaint = error.message;
      this.#ended();
    });
    this.#child.once("close", () => {
      this.#isEndedByUs = this.#killed !== undefined;
      // Where it ended by itself, what it started may still write.
      this.kill().then(
        () => this.#ended(),
        () => this.#ended(),
      );
    });
    this.#startNext();
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
      const state = { hasBegun: false, held: nothing, isWhole: false, status: undefined };
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
    turn.held = turn.held.length === 0 ? chunk : Buffer.concat([turn.held, chunk]);
    if (!turn.hasBegun) {
      const begun = turn.held.subarray(0, turn.begin.length);
      if (!begun.equals(turn.begin.subarray(0, begun.length))) return void this.kill(); // something has kept an output
      turn.hasBegun = begun.length === turn.begin.length;
      if (turn.hasBegun) turn.held = turn.held.subarray(turn.begin.length);
    }
    const at = turn.held.indexOf(this.#mark);
    turn.isWhole = at >= 0;
    if (turn.hasBegun) {
      const end = turn.isWhole ? at : turn.held.length - heldBack(turn.held, this.#mark);
      if (end > 0) turn.stdout.write(turn.held.subarray(0, end));
      turn.held = turn.held.subarray(end);
    }
    this.#settleWhole(turn);
  }

  #reported(chunk: Buffer): void {
    this.#statuses += chunk.toString("latin1");
    for (let end = this.#statuses.indexOf("\n"); end >= 0; end = this.#statuses.indexOf("\n")) {
      const told = this.#statuses.slice(0, end);
      this.#statuses = this.#statuses.slice(end + 1);
      const turn = this.#turn;
      if (told === "open") {
        this.#openPipe();
      } else if (told === "") {
        this.#giveLeave().catch((error: Error) => {
          turn?.stdout.end();
          turn?.reject(error);
        });
      } else if (turn === undefined) {
        void this.kill(); // whoever waited for a program has died (SU4)
      } else {
        turn.status = Number(told);
        this.#settleWhole(turn);
      }
    }
  }

  #openPipe(): void {
    try {
      this.#data = new PipeReader(this.#pipe, (chunk) => this.#received(chunk));
    } catch (error) {
      this.#complaint = (error as Error).message;
      void this.kill();
    }
  }

  /** SU2, SU3 */
  async #giveLeave(): Promise<void> {
    const startedMs = performance.now();
    const isAlone = (): boolean => (readNumber(this.#group.tasksFile) ?? 0) <= 1;
    while (!isAlone() && performance.now() - startedMs < settleMs && !this.hasEnded) await delay(1);
    if (!isAlone()) await this.kill();
    if (!this.hasEnded) this.#tell(nothing);
  }

  /** The next shell waits for its program. */
  #startNext(): void {
    this.#mark = drawMark();
    this.#tell(this.#mark);
  }

  #tell(line: Buffer): void {
    (this.#child.stdin as Writable).write(Buffer.concat([line, Buffer.from("\n")]));
  }

  #settleWhole(turn: Turn): void {
    if (!turn.isWhole || turn.status === undefined) return;
    this.#startNext();
    this.#settle(turn);
  }

  /** Its output is whole, or nothing more of it comes. */
  #settle(turn: Turn): void {
    this.#turn = undefined;
    const { hasBegun, isWhole, status } = turn;
    if (hasBegun && !isWhole) turn.stdout.write(turn.held);
    turn.stdout.end();
    if (hasBegun && status !== undefined) {
      turn.resolve({ code: status, signal: null });
    } else if (hasBegun || (this.#killed !== undefined && this.#isEndedByUs)) {
      turn.resolve({ code: null, signal: "SIGKILL" });
    } else {
      const why = this.#complaint.trim() || `it ended with ${status ?? "its supervisor"}`;
      void this.kill();
      turn.reject(new TreadleError("sandbox.failed", `a shell did not start: ${why}`));
    }
  }

  #ended(): void {
    this.#hasEnded = true;
    this.#data?.end();
    rmSync(this.#pipe, { force: true });
    if (this.#turn !== undefined) this.#settle(this.#turn);
  }
}

/** What is written to a named pipe, by whoever opens it. */
class PipeReader {
  readonly #descriptor: number;
  readonly #socket: Socket;
  readonly #received: (chunk: Buffer) => void;

  constructor(path: string, received: (chunk: Buffer) => void) {
    this.#received = received;
    // To write, too: it would end each time when nobody else does.
    this.#descriptor = openSync(path, constants.O_RDWR | constants.O_NONBLOCK);
    this.#socket = new Socket({ fd: this.#descriptor });
    this.#socket.on("data", received);
  }

  /** Takes what is left. */
  end(): void {
    if (this.#socket.destroyed) return;
    const chunk = Buffer.alloc(2 ** 16);
    try {
      for (;;) this.#received(Buffer.from(chunk.subarray(0, readSync(this.#descriptor, chunk))));
    } catch {
      // Nothing is left.
    }
    this.#socket.destroy();
  }
}

/** How many bytes at the end may be the beginning of the mark. */
function heldBack(output: Buffer, mark: Buffer): number {
  const last = output.subarray(Math.max(0, output.length - mark.length + 1));
  const at = last.lastIndexOf(markStart);
  const end = at < 0 ? nothing : last.subarray(at);
  return end.equals(mark.subarray(0, end.length)) ? end.length : 0;
}
