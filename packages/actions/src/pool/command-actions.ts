/**
 * Actions that are commands: a pool decides when and on which cores, a driver runs them in their trajectory's sandbox.
 *
 * Owned here: the sandbox of each trajectory, and whether what it held is gone. The sandbox starts with the first action,
 * so that a trajectory that only generates costs nothing.
 *
 * CA1 what an action finds is what those before it left: a trajectory whose sandbox died with their files ends with
 *    `sandbox.lost`, unless it was declared restorable. A sandbox in which nothing had run is replaced.
 * CA2 a sandbox is prepared (an image pulled, commands run) while somebody waits for it: when the last of them was cancelled,
 *    was late or went away, its commands end, nobody waits for the pull any more, which the engine ends in its own time, and
 *    what was made of the sandbox is removed. The next action begins again.
 * CA3 one name is one trajectory until all of it has ended: it is not opened again while it is closed.
 */
import { randomUUID } from "node:crypto";
import { TreadleError } from "@treadle/contracts";
import {
  type ExecRequest,
  type ExecResult,
  isCutShort,
  refuseUnspeakable,
  type Sandbox,
  type SandboxDriver,
  type SandboxOptions,
} from "../drivers/sandbox.ts";
import type { CheckedArchive, PackOptions } from "../drivers/sandbox-archive.ts";
import { fillTemplate } from "../elasticity/parallel-command.ts";
import type { ActionPool } from "./action-pool.ts";
import type { ActionContext, ActionHandle } from "./action-record.ts";
import type { TrajectoryOptions } from "./pool-options.ts";
import { SessionUse, type ShellSession, ShellSessions, sessionCommand } from "./shell-session.ts";
import { TrajectorySnapshot } from "./trajectory-snapshot.ts";

export type EnvironmentOptions = Omit<SandboxOptions, "from"> & {
  /** It begins with these files and sessions, and with what that trajectory's options say of containers and variables. */
  readonly from?: TrajectorySnapshot | undefined;
  /** run in every new sandbox before anything else, one after another; each must exit with 0 */
  readonly prepare?: readonly ExecRequest["command"][] | undefined;
  /** of every command, unless it says otherwise */
  readonly environment?: ExecRequest["environment"];
  /** whose share what it reserves counts against */
  readonly tenant?: string | undefined;
  /** Its actions need nothing but what `prepare` makes: a sandbox that died is replaced. */
  readonly isRestorable?: boolean | undefined;
};

/** A command of a trajectory: words, or text for the shell of one of its open sessions, which has an environment of its own. */
export type CommandRequest = ExecRequest & { readonly session?: string | undefined };

/** A sandbox from when it is asked for. */
type Opening = {
  readonly sandbox: Promise<Sandbox>;
  readonly node: string | undefined;
  readonly abort: AbortController;
  /** when it is there */
  opened: Sandbox | undefined;
  /** for it to be there */
  numWaiting: number;
};

type Environment = {
  readonly options: EnvironmentOptions;
  sessions: ShellSessions;
  opening: Opening | undefined;
  /** something was run or written in its sandbox */
  hasState: boolean;
  lost: TreadleError | undefined;
};

/** The node that has the granted cores. */
export const hostOf = (allocation: ActionContext["allocation"]): string | undefined =>
  Object.values(allocation).find(({ cores }) => cores !== undefined)?.node;

export class CommandActions {
  readonly pool: ActionPool;
  readonly driver: SandboxDriver;
  readonly #diskBytes: number | undefined;
  readonly #environments = new Map<string, Environment>();
  /** until nothing is left of them */
  readonly #closing = new Map<string, Promise<void>>();

  /** `diskBytes`: for the files of trajectories that state nothing, where the driver can hold it */
  constructor(pool: ActionPool, driver: SandboxDriver, { diskBytes }: { readonly diskBytes?: number } = {}) {
    this.pool = pool;
    this.driver = driver;
    this.#diskBytes = diskBytes;
  }

  openTrajectory(trajectory: string, own: EnvironmentOptions = {}): void {
    const options = own.from === undefined ? own : withContent(own, own.from);
    if (this.#environments.has(trajectory))
      throw new TreadleError(
        "action.invalid",
        `trajectory '${trajectory}' is open already; choose another name or close it`,
      );
    if (this.#closing.has(trajectory))
      throw new TreadleError(
        "action.invalid",
        `trajectory '${trajectory}' is still being closed; wait for that, or choose another name`,
      );
    for (const command of [["true"] as const, ...(options.prepare ?? [])])
      refuseUnspeakable({ command, environment: options.environment });
    const sessions = new ShellSessions(randomUUID, options.from?.content.sessions);
    const environment: Environment = { options, sessions, opening: undefined, hasState: false, lost: undefined };
    options.from?.hold();
    const opening: TrajectoryOptions = {
      tenant: options.tenant,
      memoryBytes: options.memoryBytes,
      node: options.from?.content.files.node,
      onClose: async () => {
        await endOf(environment.opening, new TreadleError("action.cancelled", `trajectory '${trajectory}' was closed`));
        await options.from?.release();
      },
    };
    try {
      this.pool.openTrajectory(trajectory, opening);
    } catch (error) {
      void options.from?.release();
      throw error;
    }
    this.#environments.set(trajectory, environment);
  }

  /** A shell whose state stays from command to command (`ShellSessions`); it costs nothing until its first. */
  openSession(trajectory: string, session: string): void {
    this.#environmentOf(trajectory).sessions.open(session);
  }

  closeSession(trajectory: string, session: string): void {
    this.#environmentOf(trajectory).sessions.close(session);
  }

  /**
   * Queues a command. `spec` is an `ActionSpec`; the command gets exactly the cores it was granted, and their number,
   * and that of every other resource, as TREADLE_UNITS_<RESOURCE>. Where `spec` has a key, `{parallel}` in a word stands for
   * the units of it. `started` runs when an attempt begins.
   */
  submit(
    trajectory: string,
    spec: { readonly [field: string]: unknown },
    { session: name, ...request }: CommandRequest,
    started?: (context: ActionContext) => void,
  ): ActionHandle<ExecResult> {
    const { options, sessions } = this.#environmentOf(trajectory);
    refuseUnspeakable(request);
    const use = name === undefined ? undefined : new SessionUse(sessions.free(name));
    const handle = this.pool.submit({ ...spec, trajectory }, async (context) => {
      started?.(context);
      const cores = Object.values(context.allocation).flatMap((grant) => grant.cores ?? []);
      const units = Object.entries(context.allocation).map(([resource, grant]) => [
        `TREADLE_UNITS_${resource.toUpperCase().replaceAll(/[^A-Z0-9]/g, "_")}`,
        String(grant.units),
      ]);
      const signal = request.signal === undefined ? context.signal : AbortSignal.any([request.signal, context.signal]);
      const inSandbox = (sandbox: Sandbox): Promise<ExecResult> => {
        context.begin();
        const parallel = typeof spec["key"] === "string" ? context.allocation[spec["key"]]?.units : undefined;
        const command = parallel === undefined ? request.command : fillTemplate(request.command, parallel);
        return sandbox.exec({
          ...request,
          command: use === undefined ? command : inSession(use.session, command, sandbox),
          environment: { ...Object.fromEntries(units), ...options.environment, ...request.environment },
          ...(cores.length > 0 ? { cores } : {}),
          signal,
        });
      };
      const node = hostOf(context.allocation);
      const within = this.#within(trajectory, inSandbox, { cores, node, signal });
      const result = await (use === undefined ? within : use.during(within));
      if (isCutShort(result)) context.wasCut();
      return result;
    });
    use?.until(handle.result);
    return handle;
  }

  /** Queues what is an action of the trajectory, but does not run in its sandbox, such as a request to a service. */
  submitOutside<Result>(
    trajectory: string,
    spec: { readonly [field: string]: unknown },
    execute: (context: ActionContext) => Promise<Result>,
  ): ActionHandle<Result> {
    this.#environmentOf(trajectory);
    return this.pool.submit({ ...spec, trajectory }, execute);
  }

  /** `signal` ends the preparation of a sandbox that nobody else waits for. */
  writeFile(trajectory: string, path: string, data: string | Uint8Array, signal?: AbortSignal): Promise<void> {
    return this.#within(trajectory, (sandbox) => sandbox.writeFile(path, data), { signal });
  }

  readFile(trajectory: string, path: string, maxBytes?: number, signal?: AbortSignal): Promise<Buffer> {
    return this.#within(trajectory, (sandbox) => sandbox.readFile(path, maxBytes), { signal });
  }

  /** Puts a folder or file there; see `Sandbox.unpack`. */
  upload(trajectory: string, path: string, archive: CheckedArchive, signal: AbortSignal): Promise<void> {
    return this.#within(trajectory, (sandbox) => sandbox.unpack(path, archive, signal), { signal });
  }

  /** An archive of a folder or file, which nobody has checked; see `Sandbox.pack`. */
  download(trajectory: string, path: string, options: PackOptions): Promise<void> {
    return this.#within(trajectory, (sandbox) => sandbox.pack(path, options), options);
  }

  /** A copy of its files and sessions, from which others can be opened. Throws `action.invalid` as a sandbox does (SN1). */
  snapshot(trajectory: string, maxBytes: number, signal?: AbortSignal): Promise<TrajectorySnapshot> {
    const { options, sessions } = this.#environmentOf(trajectory);
    const { environment, container } = options;
    const copy = async (sandbox: Sandbox): Promise<TrajectorySnapshot> => {
      const files = await sandbox.snapshot({ maxBytes, signal });
      return new TrajectorySnapshot({ files, sessions: sessions.copy(), environment, container });
    };
    return this.#within(trajectory, copy, { signal });
  }

  /** Of each open trajectory that has a sandbox whose driver can tell. */
  usedBytes(): Map<string, number> {
    const used = new Map<string, number>();
    for (const [trajectory, { opening }] of this.#environments) {
      const bytes = opening?.opened?.usedBytes();
      if (bytes !== undefined) used.set(trajectory, bytes);
    }
    return used;
  }

  /** Takes its sandbox away: what it runs ends, and so does it (CA1). */
  async end(trajectory: string, cause: string): Promise<void> {
    const environment = this.#environments.get(trajectory);
    if (environment === undefined || environment.lost !== undefined) return;
    await this.#lose(trajectory, environment, cause);
  }

  /** Those whose sandboxes have died, without waiting for an action that finds out (CA1). */
  async endLost(): Promise<void> {
    const ends = [...this.#environments].map(([trajectory, environment]) => {
      const loss = environment.opening?.opened?.loss;
      return loss === undefined ? undefined : this.#lose(trajectory, environment, loss);
    });
    await Promise.allSettled(ends);
  }

  async closeTrajectory(trajectory: string): Promise<void> {
    if (this.#environments.get(trajectory)?.lost === undefined) this.#environmentOf(trajectory);
    this.#environments.delete(trajectory);
    const closing = this.pool.closeTrajectory(trajectory).finally(() => this.#closing.delete(trajectory));
    this.#closing.set(trajectory, closing);
    await closing;
  }

  /** Resolves when one of that name, which is being closed, has left nothing: it may be opened again then. */
  async closed(trajectory: string): Promise<void> {
    await this.#closing.get(trajectory)?.catch(() => {}); // who closes it is told
  }

  /** Closes the pool, every trajectory and the driver. */
  async close(): Promise<void> {
    await this.pool.close();
    this.#environments.clear();
    await this.driver.close();
  }

  /** Throws `sandbox.lost` where what it held is gone. */
  #environmentOf(trajectory: string): Environment {
    const environment = this.#environments.get(trajectory);
    if (environment === undefined)
      throw new TreadleError("action.invalid", `trajectory '${trajectory}' is not open; open it first`);
    if (environment.lost !== undefined) throw environment.lost;
    return environment;
  }

  async #within<Result>(
    trajectory: string,
    run: (sandbox: Sandbox) => Promise<Result>,
    granted: {
      readonly cores?: readonly number[] | undefined;
      readonly node?: string | undefined;
      readonly signal?: AbortSignal | undefined;
    },
  ): Promise<Result> {
    const { cores, signal } = granted;
    const environment = this.#environmentOf(trajectory);
    // It died while nothing ran.
    const loss = environment.opening?.opened?.loss;
    if (loss !== undefined) {
      await this.#lose(trajectory, environment, loss);
      if (environment.lost !== undefined) throw environment.lost;
      // Closed meanwhile, and perhaps opened again.
      if (this.#environmentOf(trajectory) !== environment)
        throw new TreadleError("action.cancelled", `trajectory '${trajectory}' was closed`);
    }
    const node = granted.node ?? environment.opening?.node ?? this.pool.place(trajectory);
    environment.opening ??= this.#open(environment, cores, node);
    const { opening } = environment;
    const sandbox = opening.opened ?? (await this.#opened(environment, opening, signal));
    // Its cores are of a host that was lost meanwhile.
    if (sandbox.loss === undefined && opening.node !== node)
      throw retryable(trajectory, `it is on host '${opening.node}' now, and no longer on '${node}'`);
    if (sandbox.loss === undefined) {
      // Until one has ended, an attempt in a new sandbox finds what this one did.
      try {
        const result = await run(sandbox);
        // What ended as its sandbox died may have been told by files that were gone.
        if (sandbox.loss === undefined) {
          environment.hasState = true;
          return result;
        }
      } catch (error) {
        if (sandbox.loss === undefined) {
          environment.hasState = true;
          throw error;
        }
      }
    }
    // Closed meanwhile, or told already by another action.
    const cause = sandbox.loss ?? "it was closed";
    if (this.#environmentOf(trajectory).opening === opening) await this.#lose(trajectory, environment, cause);
    throw environment.lost ?? retryable(trajectory, cause);
  }

  /** CA1 */
  async #lose(trajectory: string, environment: Environment, cause: string): Promise<void> {
    const { opening, options, hasState } = environment;
    environment.opening = undefined;
    if (hasState && options.isRestorable !== true) {
      environment.lost = new TreadleError(
        "sandbox.lost",
        `trajectory '${trajectory}' lost its sandbox and its files: ${cause}; open another, or declare it restorable with what prepares it`,
        { details: { trajectory, cause } },
      );
      // The action that found out is one of those that this ends.
      void this.pool.closeTrajectory(trajectory, environment.lost);
    }
    environment.hasState = false;
    // Nobody takes a new sandbox's for what the old one kept.
    environment.sessions = new ShellSessions(randomUUID, options.from?.content.sessions);
    await endOf(opening, new TreadleError("sandbox.failed", `trajectory '${trajectory}' lost its sandbox: ${cause}`));
  }

  #open(environment: Environment, cores: readonly number[] | undefined, node: string | undefined): Opening {
    const { options } = environment;
    const abort = new AbortController();
    const sandbox = this.#prepared(options, { cores, node }, abort.signal);
    const opening: Opening = { sandbox, node, abort, opened: undefined, numWaiting: 0 };
    sandbox.then(
      (ready) => {
        opening.opened = ready;
      },
      (error: unknown) => {
        if (environment.opening === opening) environment.opening = undefined;
        // What it was to begin from is gone: it will never begin.
        if (error instanceof TreadleError && error.code === "sandbox.lost") environment.lost = error;
      },
    );
    return opening;
  }

  /** CA2. Who leaves while others wait leaves at once; the last one, when nothing is left of what was begun. */
  async #opened(environment: Environment, opening: Opening, signal: AbortSignal | undefined): Promise<Sandbox> {
    let isWaiting = true;
    const stopWaiting = (): void => {
      if (isWaiting) opening.numWaiting--;
      isWaiting = false;
    };
    let leave = (): void => {};
    const left = new Promise<never>((_, reject) => {
      leave = () => {
        stopWaiting();
        if (opening.numWaiting > 0) return reject(signal?.reason);
        if (environment.opening === opening) environment.opening = undefined;
        opening.abort.abort(signal?.reason);
      };
    });
    opening.numWaiting++;
    if (signal?.aborted) leave();
    signal?.addEventListener("abort", leave, { once: true });
    try {
      const sandbox = await Promise.race([opening.sandbox, left]);
      if (!opening.abort.signal.aborted) return sandbox;
      // It was ready just when the last one left.
      await sandbox.close();
      throw opening.abort.signal.reason;
    } finally {
      stopWaiting();
      signal?.removeEventListener("abort", leave);
    }
  }

  /** Its commands run on the cores of the action that needs it, where one does. */
  async #prepared(
    options: EnvironmentOptions,
    { cores = [], node }: { readonly cores: readonly number[] | undefined; readonly node: string | undefined },
    signal: AbortSignal,
  ): Promise<Sandbox> {
    const { prepare = [], environment = {}, memoryBytes, maxProcesses, network, container } = options;
    const from = options.from?.content.files;
    const diskBytes = options.diskBytes ?? (this.driver.diskLacks(node) === undefined ? this.#diskBytes : undefined);
    const given = { memoryBytes, maxProcesses, network, diskBytes, container, from, node };
    const sandbox = await this.driver.open(given, signal);
    try {
      for (const command of prepare) {
        signal.throwIfAborted();
        const on = cores.length > 0 ? { cores } : {};
        const { status, exitCode, stderr } = await sandbox.exec({ command, environment, signal, ...on });
        if (exitCode === 0) continue;
        signal.throwIfAborted();
        const why = status === "exited" ? `exited with ${exitCode}: ${stderr.toString().trim().slice(-500)}` : status;
        throw new TreadleError(
          "sandbox.failed",
          `'${command.join(" ").slice(0, 100)}', which prepares a sandbox, ${why}`,
        );
      }
      signal.throwIfAborted();
      return sandbox;
    } catch (error) {
      await sandbox.close();
      throw error;
    }
  }
}

/** Its own options come first; the image is the snapshot's. */
function withContent(options: EnvironmentOptions, { content }: TrajectorySnapshot): EnvironmentOptions {
  const { image, ...own } = options.container ?? {};
  if (image !== undefined)
    throw new TreadleError(
      "action.invalid",
      `image '${image}' was asked for with a snapshot, which brings its own; leave one of them out`,
    );
  const given = Object.fromEntries(Object.entries(own).filter(([, value]) => value !== undefined));
  const container = { ...content.container, ...given };
  return { ...options, container, environment: { ...content.environment, ...options.environment } };
}

function inSession(session: ShellSession, [text]: ExecRequest["command"], sandbox: Sandbox): ExecRequest["command"] {
  const command = sessionCommand(session, text, sandbox.stateFolder);
  session.hasRun = true;
  return command;
}

/** Whether it is there or not, nothing is left of it. */
async function endOf(opening: Opening | undefined, why: TreadleError): Promise<void> {
  opening?.abort.abort(why);
  await (await opening?.sandbox.catch(() => undefined))?.close();
}

const retryable = (trajectory: string, cause: string): TreadleError =>
  new TreadleError(
    "sandbox.failed",
    `the sandbox of trajectory '${trajectory}' died: ${cause}; the next attempt gets another`,
  );
