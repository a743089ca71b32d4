import { TreadleError } from "@treadle/contracts";
import { HeldShell, type RunProgram, wholeProgram } from "./held-shell.ts";
import {
  type ExecRequest,
  type ExecResult,
  refuseUnspeakable,
  type Sandbox,
  type Snapshot,
  type SnapshotOptions,
} from "./sandbox.ts";
import { type CheckedArchive, type PackOptions, packPath, unpackPath } from "./sandbox-archive.ts";

/** What is the same in every driver's sandbox: it refuses once it is over, and what runs in it ends before it goes. */
export abstract class OpenSandbox implements Sandbox {
  readonly #forget: () => void;
  readonly #closing = new AbortController();
  readonly #running = new Set<Promise<ExecResult>>();
  readonly #shells = new Set<HeldShell>();
  /** of a held shell */
  #action: Promise<ExecResult> | undefined;
  #copying: Promise<unknown> | undefined;
  #closed: Promise<void> | undefined;

  /** `forget`: called when it is gone */
  constructor(forget: () => void) {
    this.#forget = forget;
  }

  abstract readonly id: string;
  abstract readonly stateFolder: string;
  abstract writeFile(path: string, data: string | Uint8Array): Promise<void>;
  abstract readFile(path: string, maxBytes?: number): Promise<Buffer>;

  /** Why what holds it has ended. */
  protected abstract lossOf(): string | undefined;
  /** The request's signal ends with the sandbox, too. */
  protected abstract run(request: ExecRequest): Promise<ExecResult>;
  /** Nothing else runs meanwhile. */
  protected abstract copy(options: { readonly maxBytes: number; readonly signal: AbortSignal }): Promise<Snapshot>;
  /** Nothing runs in it any more. */
  protected abstract remove(): Promise<void>;

  protected get holdsShells(): boolean {
    return this.#shells.size > 0;
  }

  protected get isClosed(): boolean {
    return this.#closed !== undefined;
  }

  get loss(): string | undefined {
    return this.isClosed ? undefined : this.lossOf();
  }

  usedBytes(): number | undefined {
    return undefined;
  }

  async exec(request: ExecRequest): Promise<ExecResult> {
    this.refuse();
    refuseUnspeakable(request);
    while (this.#copying !== undefined) await this.#copying; // SN1
    this.refuse();
    // HS6
    if (this.#action !== undefined)
      throw new TreadleError(
        "action.invalid",
        `a command may not run beside an action of a held shell, for it could change what that prints; wait for the action's end, cancel it, or use another sandbox`,
      );
    const signals = [this.#closing.signal, request.signal].filter((signal) => signal !== undefined);
    const run = this.run({ ...request, signal: AbortSignal.any(signals) });
    this.#running.add(run);
    try {
      return await run;
    } finally {
      this.#running.delete(run);
    }
  }

  unpack(path: string, archive: CheckedArchive, signal: AbortSignal): Promise<void> {
    return unpackPath(this, this.placed(path), archive, signal);
  }

  pack(path: string, options: PackOptions): Promise<void> {
    return packPath(this, this.placed(path), options);
  }

  /** Throws `sandbox.failed` for a path that no file of the sandbox may have. */
  protected placed(path: string): string {
    return path;
  }

  /** SN1 */
  async snapshot({ maxBytes, signal }: SnapshotOptions): Promise<Snapshot> {
    while (this.#copying !== undefined) await this.#copying;
    this.refuse();
    const numRunning = this.#running.size + this.#shells.size;
    if (numRunning > 0)
      throw new TreadleError(
        "action.invalid",
        `a snapshot is of files at rest, and ${numRunning} ${numRunning === 1 ? "command runs" : "commands run"}; wait for their end, or cancel them`,
      );
    const signals = [this.#closing.signal, signal].filter((one) => one !== undefined);
    const copy = this.copy({ maxBytes, signal: AbortSignal.any(signals) });
    this.#copying = copy.then(
      () => {},
      () => {},
    );
    try {
      return await copy;
    } finally {
      this.#copying = undefined;
    }
  }

  holdShell(): HeldShell {
    this.refuse();
    const { run, end } = this.startShell();
    const shell = new HeldShell((program, request) => this.#runAlone(() => run(program, request)), end);
    this.#shells.add(shell);
    return shell;
  }

  /** What runs the programs of a shell, one at a time; `end` comes after the last. Each is a command of its own, where a driver has no faster way. */
  protected startShell(): { readonly run: RunProgram; readonly end?: () => Promise<void> } {
    return { run: (program, request) => this.run({ ...request, command: ["sh"], stdin: wholeProgram(program) }) };
  }

  /** HS6 */
  async #runAlone(run: () => Promise<ExecResult>): Promise<ExecResult> {
    this.refuse();
    while (this.#copying !== undefined) await this.#copying; // SN1
    this.refuse();
    const numRunning = this.#running.size + (this.#action === undefined ? 0 : 1);
    if (numRunning > 0)
      throw new TreadleError(
        "action.invalid",
        `an action of a held shell may not run beside ${numRunning} ${numRunning === 1 ? "command" : "commands"}, which could change what it prints; wait for their end, cancel them, or give the shell a sandbox of its own`,
      );
    const action = run();
    this.#action = action;
    try {
      return await action;
    } finally {
      this.#action = undefined;
    }
  }

  close(): Promise<void> {
    this.#closed ??= (async () => {
      this.#closing.abort(new TreadleError("action.cancelled", `sandbox '${this.id}' was closed`));
      await Promise.allSettled([this.#copying, ...this.#running, ...[...this.#shells].map((shell) => shell.close())]);
      await this.remove().finally(() => this.#forget());
    })();
    return this.#closed;
  }

  /** Throws `sandbox.failed` once it is over. */
  protected refuse(): void {
    if (this.isClosed) throw new TreadleError("sandbox.failed", `sandbox '${this.id}' is closed`);
    const { loss } = this;
    if (loss !== undefined)
      throw new TreadleError("sandbox.failed", `sandbox '${this.id}' has died: ${loss}; open another`);
  }
}
