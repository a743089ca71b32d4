/**
 * A program that serves on a loopback port: started, watched, ended.
 *
 * Owned here: its process, with all that this starts, its port, and what it said last. What it is asked, and for how long it is
 * needed, is its owner's.
 *
 * PRG1 the group of its process ends with that process, with `end`, and with any death of this one: nothing of it is left.
 * PRG2 no other program that is started here, by whatever process, has its port before it has ended; where a stranger has taken
 *    that, or answers there, another one is tried.
 * PRG3 `ready` resolves once it answers, and rejects at its deadline; at once, with its last words, where it has ended.
 */
import { type ChildProcess, spawn } from "node:child_process";
import type { Readable } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import { TreadleError } from "@treadle/contracts";
import { timeLimit } from "@treadle/contracts/time-limit";
import type { Reaper } from "./reaper.ts";
import { isTaken, reservePort } from "./reserved-port.ts";

export type ServerProgramOptions = {
  /** in errors, such as `service 'judge'` */
  readonly name: string;
  readonly command: (port: number) => { readonly program: string; readonly args: readonly string[] };
  /** all of it */
  readonly environment: Readonly<Record<string, string | undefined>>;
  /** of whoever answers at an address: not yet ready, or somebody else's program; what it throws is `false` */
  readonly probe: (url: string, signal: AbortSignal) => Promise<boolean | "stranger">;
  /** what the probe asks, for errors: `did not answer at /health` */
  readonly probed: string;
  readonly startTimeoutMs: number;
  /** the key of the configuration that has it */
  readonly startTimeoutKey: string;
  readonly reaper: Reaper;
  /** gives up the start, with its reason */
  readonly signal?: AbortSignal | undefined;
  /** what it prints, line by line; long ones come in parts */
  readonly onLine?: ((line: string) => void) | undefined;
};

type End = { readonly how: string; readonly error?: Error };

const graceMs = 5000;
const probeTimeoutMs = 60_000;
const pollMs = 50;
const maxPorts = 3;
const maxLineLength = 4096;
const lastWordsLength = 4000;
/** from its end until what it has printed is taken for complete, and what SIGKILL was sent to for gone, whoever holds its pipes */
const lastMs = 500;
const lookMs = 5;

export class ServerProgram {
  /** where it answers, once it does */
  readonly ready: Promise<string>;
  /** resolves, when nothing of it is left, with how it ended and what it said last */
  readonly ended: Promise<string>;
  readonly #options: ServerProgramOptions;
  readonly #giveUp = new AbortController();
  #child: ChildProcess | undefined;
  #lastWords = "";
  #isAsked = false;

  constructor(options: ServerProgramOptions) {
    this.#options = options;
    let isOver!: (how: string) => void;
    this.ended = new Promise((resolve) => {
      isOver = resolve;
    });
    this.ready = this.#start(isOver);
    this.ready.catch(() => {}); // whoever waits for it is told
  }

  /** undefined while it has none */
  get pid(): number | undefined {
    return this.#child?.pid;
  }

  async end(): Promise<void> {
    this.#isAsked = true;
    this.#giveUp.abort(new TreadleError("service.failed", `${this.#options.name} was ended; start it again`));
    signalGroup(this.pid, "SIGTERM");
    await Promise.race([this.ended, delay(graceMs, undefined, { ref: false })]);
    signalGroup(this.pid, "SIGKILL");
    await this.ended;
  }

  async #start(isOver: (how: string) => void): Promise<string> {
    const { name, startTimeoutMs, signal } = this.#options;
    const untilMs = performance.now() + startTimeoutMs;
    for (let numPorts = 1; ; numPorts++) {
      const { port, release } = await reservePort();
      const ended = this.#spawn(port);
      const url = `http://127.0.0.1:${port}`;
      const isOurs = await this.#untilReady(url, untilMs, ended).catch((cause: unknown) => ({ cause }));
      if (isOurs === true) {
        void ended.then(({ how }) => {
          release();
          isOver(`${how}; ${this.#lastSaid()}`);
        });
        return url;
      }
      signalGroup(this.pid, "SIGKILL"); // it has begun nothing
      const { how, error } = await ended;
      release();
      const isElsewhere = isOurs === "stranger" || (isOurs === "ended" && (await isTaken(port)));
      if (isElsewhere && numPorts < maxPorts && !this.#isAsked && !signal?.aborted) continue;
      isOver(`${how}; ${this.#lastSaid()}`);
      if (typeof isOurs === "object") throw isOurs.cause;
      const what = isElsewhere ? "found another program on each port that it was given" : "ended before it answered";
      throw new TreadleError("service.failed", `${name} ${what}: it ${how}; ${this.#lastSaid()}`, { cause: error });
    }
  }

  #spawn(port: number): Promise<End> {
    const { command, environment, reaper } = this.#options;
    const { program, args } = command(port);
    const child = spawn(program, args, {
      env: environment,
      stdio: ["ignore", "pipe", "pipe"],
      detached: true,
    });
    const { pid } = child;
    this.#child = child;
    this.#lastWords = "";
    if (pid !== undefined) reaper.watch(pid);
    for (const stream of [child.stdout, child.stderr]) this.#read(stream);
    return new Promise((resolve) => {
      const closed = new Promise((done) => child.once("close", done));
      child.once("exit", async (code, by) => {
        this.#child = undefined; // its number may be another's soon
        signalGroup(pid, "SIGKILL"); // PRG1
        await Promise.race([Promise.all([closed, untilGone(pid)]), delay(lastMs, undefined, { ref: false })]);
        if (pid !== undefined) reaper.forget(pid);
        for (const stream of [child.stdout, child.stderr]) stream.destroy();
        resolve({ how: by ? `ended by signal ${by}` : `ended with code ${code}` });
      });
      child.once(
        "error",
        (error) => child.pid === undefined && resolve({ how: `cannot be started (${error.message})`, error }),
      );
    });
  }

  /** Whose program answers, or that this one has ended. */
  async #untilReady(url: string, untilMs: number, ended: Promise<End>): Promise<true | "stranger" | "ended"> {
    const { name, probe, probed, startTimeoutMs, startTimeoutKey, signal } = this.#options;
    const gone = new AbortController();
    void ended.then(() => gone.abort());
    while (true) {
      const leftMs = Math.max(1, Math.ceil(untilMs - performance.now()));
      const limit = timeLimit(Math.min(leftMs, probeTimeoutMs), signal, gone.signal, this.#giveUp.signal);
      const answer = await probe(url, limit).catch(() => false as const);
      signal?.throwIfAborted();
      this.#giveUp.signal.throwIfAborted();
      if (gone.signal.aborted) return "ended";
      if (answer !== false) return answer;
      if (performance.now() > untilMs)
        throw new TreadleError(
          "service.failed",
          `${name} did not answer at ${probed} within ${startTimeoutMs} ms, and ${this.#lastSaid()}; raise ${startTimeoutKey}`,
        );
      await delay(pollMs);
    }
  }

  #read(stream: Readable): void {
    const { onLine } = this.#options;
    let partial = "";
    stream.setEncoding("utf8");
    stream.on("error", () => {});
    stream.on("data", (text: string) => {
      this.#lastWords = `${this.#lastWords}${text}`.slice(-lastWordsLength);
      if (onLine === undefined) return;
      const lines = `${partial}${text}`.split("\n");
      partial = lines.pop() as string;
      for (const line of lines) onLine(line);
      if (partial.length < maxLineLength) return;
      onLine(partial);
      partial = "";
    });
    stream.on("close", () => partial !== "" && onLine?.(partial));
  }

  #lastSaid(): string {
    const said = this.#lastWords.trim();
    return said === "" ? "it said nothing" : `it said last: ${said}`;
  }
}

/** False where there is none any more. */
function signalGroup(group: number | undefined, signal: NodeJS.Signals | 0): boolean {
  try {
    return group !== undefined && process.kill(-group, signal);
  } catch {
    return false;
  }
}

async function untilGone(group: number | undefined): Promise<void> {
  for (let left = lastMs / lookMs; left > 0 && signalGroup(group, 0); left--)
    await delay(lookMs, undefined, { ref: false });
}
