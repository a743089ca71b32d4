/**
 * Where a trajectory's actions are told one after another as shell text, and find the files of those before them.
 *
 * Owned here: the order of the actions. What starts, limits and ends their processes is the driver's.
 *
 * HS1 actions of one shell run one at a time, each in a shell process of its own: variables, `cd` and errors end with it.
 * HS2 an action settles once, and never rejects because of what it did. It ends with everything that it started.
 * HS3 what is kept of an action's output never exceeds the limit.
 * HS4 an action's exit status is what its parent, outside of the sandbox, was told by the kernel; nothing that an action
 *    prints is taken for it.
 * HS5 what an action does to its output, or has left in it, changes nothing of what later ones print.
 * HS6 an action has its sandbox alone. Commands of a sandbox are one user, and the kernel lets a user's processes trace each other,
 *    and open each other's outputs. So an action is refused while something else runs there, something else while it runs, and
 *    nothing of what ran before lives when it begins (under `ProcessDriver`, nothing that can be found).
 */
import { TreadleError } from "@treadle/contracts";
import type { ExecRequest, ExecResult, ExecStatus } from "./sandbox.ts";

export type ShellRequest = Pick<ExecRequest, "environment" | "cores" | "timeoutMs" | "maxOutputBytes" | "signal"> & {
  /** POSIX shell text; `$1`, `$2`, … are `args`, which are never parsed as shell text */
  readonly program: string;
  readonly args?: readonly string[] | undefined;
};

export type ShellResult = {
  readonly status: ExecStatus;
  /** null unless it ended by itself */
  readonly exitCode: number | null;
  /** stdout and stderr, as they were written */
  readonly output: Buffer;
  readonly seconds: number;
};

export type RunProgram = (program: string, request: Omit<ExecRequest, "command">) => Promise<ExecResult>;

export class HeldShell {
  readonly #run: RunProgram;
  readonly #end: () => Promise<void>;
  #last: Promise<unknown> = Promise.resolve();
  readonly #closing = new AbortController();

  /** `run` runs a program's text, both outputs in one; `end` runs once, after the last of them. */
  constructor(run: RunProgram, end: () => Promise<void> = async () => {}) {
    this.#run = run;
    this.#end = end;
  }

  /** Runs an action after those before it (HS1). Throws `sandbox.failed` when no shell can be started. */
  ask(request: ShellRequest): Promise<ShellResult> {
    const turn = this.#last.then(() => this.#ask(request));
    this.#last = turn.catch(() => {});
    return turn;
  }

  /** Ends what runs, and the shell. */
  async close(): Promise<void> {
    this.#closing.abort();
    await this.#last;
    await this.#end();
  }

  async #ask({ program, args, environment, signal, ...limits }: ShellRequest): Promise<ShellResult> {
    if (this.#closing.signal.aborted) throw new TreadleError("sandbox.failed", "the shell is closed");
    const signals = [this.#closing.signal, signal].filter((one) => one !== undefined);
    const text = programText(program, args, environment);
    const request = { ...limits, graceMs: 0, signal: AbortSignal.any(signals) };
    const { status, exitCode, stdout, seconds } = await this.#run(text, request);
    return { status, exitCode, output: stdout, seconds };
  }
}

function programText(
  program: string,
  args: readonly string[] = [],
  environment: ExecRequest["environment"] = {},
): string {
  const variables = Object.entries(environment).map(([name, value]) => `export ${name}=${quoted(value)}; `);
  const parameters = args.length > 0 ? `set -- ${args.map(quoted).join(" ")}; ` : "";
  return `${variables.join("")}${parameters}eval ${quoted(program)}`;
}

/**
 * For a shell that reads from its input: it closes that, and makes one of its outputs, before it looks at the program. What
 * it prints first is `begin`.
 */
export function wholeProgram(program: string, begin = ""): string {
  return `{ exec </dev/null 2>&1; printf '%s' '${begin}'; ${program}\nexit; }\n`;
}

/** As one word of a shell. */
export const quoted = (text: string): string => `'${text.replaceAll("\0", "").replaceAll("'", `'\\''`)}'`;
