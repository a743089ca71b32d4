/**
 * Actions that are commands: a pool decides when and on which cores, a driver runs them in their trajectory's sandbox.
 *
 * Owned here: the sandbox of each trajectory, and whether what it held is gone. The sandbox starts with the first action,
 * so that a trajectory that only generates costs nothing.
 *
 * CA1 what an action finds is what those before it left: a trajectory whose sandbox died with their files ends with
 *    `sandbox.lost`, unless it was declared restorable. A sandbox in which nothing had run is replaced.
 */
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
import { fillTemplate } from "../elasticity/parallel-command.ts";
import type { ActionPool } from "./action-pool.ts";
import type { ActionContext, ActionHandle } from "./action-record.ts";

export type EnvironmentOptions = SandboxOptions & {
  /** run in every new sandbox before anything else, one after another; each must exit with 0 */
  readonly prepare?: readonly ExecRequest["command"][] | undefined;
  /** of every command, unless it says otherwise */
  readonly environment?: ExecRequest["environment"];
  /** whose share what it reserves counts against */
  readonly tenant?: string | undefined;
  /** Its actions need nothing but what `prepare` makes: a sandbox that died is replaced. */
  readonly isRestorable?: boolean | undefined;
};

type Environment = {
  readonly options: EnvironmentOptions;
  sandbox: Promise<Sandbox> | undefined;
  /** something was run or written in its sandbox */
  hasState: boolean;
  lost: TreadleError | undefined;
};

export class CommandActions {
  readonly pool: ActionPool;
  readonly driver: SandboxDriver;
  readonly #environments = new Map<string, Environment>();

  constructor(pool: ActionPool, driver: SandboxDriver) {
    this.pool = pool;
    this.driver = driver;
  }

  openTrajectory(trajectory: string, options: EnvironmentOptions = {}): void {
    if (this.#environments.has(trajectory))
      throw new TreadleError(
        "action.invalid",
        `trajectory '${trajectory}' is open already; choose another name or close it`,
      );
    for (const command of [["true"] as const, ...(options.prepare ?? [])])
      refuseUnspeakable({ command, environment: options.environment });
    const environment: Environment = { options, sandbox: undefined, hasState: false, lost: undefined };
    this.pool.openTrajectory(trajectory, {
      tenant: options.tenant,
      memoryBytes: options.memoryBytes,
      onClose: async () => {
        // A sandbox that did not start has nothing to close.
        await (await environment.sandbox?.catch(() => undefined))?.close();
      },
    });
    this.#environments.set(trajectory, environment);
  }

  /**
   * Queues a command. `spec` is an `ActionSpec`; the command gets exactly the cores it was granted, and their number,
   * and that of every other resource, as TREADLE_UNITS_<RESOURCE>. Where `spec` has a key, `{parallel}` in a word stands for
   * the units of it. `started` runs when an attempt begins.
   */
  submit(
    trajectory: string,
    spec: { readonly [field: string]: unknown },
    request: ExecRequest,
    started?: (context: ActionContext) => void,
  ): ActionHandle<ExecResult> {
    const { options } = this.#environmentOf(trajectory);
    refuseUnspeakable(request);
    return this.pool.submit({ ...spec, trajectory }, async (context) => {
      started?.(context);
      const cores = Object.values(context.allocation).flatMap((grant) => grant.cores ?? []);
      const units = Object.entries(context.allocation).map(([resource, grant]) => [
        `TREADLE_UNITS_${resource.toUpperCase().replaceAll(/[^A-Z0-9]/g, "_")}`,
        String(grant.units),
      ]);
      const result = await this.#within(trajectory, (sandbox) => {
        context.begin();
        const parallel = typeof spec["key"] === "string" ? context.allocation[spec["key"]]?.units : undefined;
        const { command } = request;
        return sandbox.exec({
          ...request,
          command: parallel === undefined ? command : fillTemplate(command, parallel),
          environment: { ...Object.fromEntries(units), ...options.environment, ...request.environment },
          ...(cores.length > 0 ? { cores } : {}),
          signal: request.signal === undefined ? context.signal : AbortSignal.any([request.signal, context.signal]),
        });
      });
      if (isCutShort(result)) context.wasCut();
      return result;
    });
  }

  writeFile(trajectory: string, path: string, data: string | Uint8Array): Promise<void> {
    return this.#within(trajectory, (sandbox) => sandbox.writeFile(path, data));
  }

  readFile(trajectory: string, path: string, maxBytes?: number): Promise<Buffer> {
    return this.#within(trajectory, (sandbox) => sandbox.readFile(path, maxBytes));
  }

  /** Of each open trajectory that has a sandbox whose driver can tell. */
  async usedBytes(): Promise<Map<string, number>> {
    const used = new Map<string, number>();
    for (const [trajectory, { sandbox }] of this.#environments) {
      const bytes = (await sandbox?.catch(() => undefined))?.usedBytes();
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

  async closeTrajectory(trajectory: string): Promise<void> {
    if (this.#environments.get(trajectory)?.lost === undefined) this.#environmentOf(trajectory);
    this.#environments.delete(trajectory);
    await this.pool.closeTrajectory(trajectory);
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

  async #within<Result>(trajectory: string, run: (sandbox: Sandbox) => Promise<Result>): Promise<Result> {
    const environment = this.#environmentOf(trajectory);
    environment.sandbox ??= this.#open(environment);
    const opening = environment.sandbox;
    const sandbox = await opening.catch((error: unknown) => {
      if (environment.sandbox === opening) environment.sandbox = undefined;
      throw error;
    });
    if (sandbox.loss === undefined) {
      // Until one has ended, an attempt in a new sandbox finds what this one did.
      try {
        const result = await run(sandbox);
        if (sandbox.loss === undefined || !isStruck(result)) {
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
    if (this.#environmentOf(trajectory).sandbox === opening)
      await this.#lose(trajectory, environment, sandbox.loss ?? "it was closed");
    throw environment.lost ?? retryable(trajectory, sandbox.loss ?? "it was closed");
  }

  /** CA1 */
  async #lose(trajectory: string, environment: Environment, cause: string): Promise<void> {
    const { sandbox, options, hasState } = environment;
    environment.sandbox = undefined;
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
    await (await sandbox?.catch(() => undefined))?.close();
  }

  async #open({ options }: Environment): Promise<Sandbox> {
    const { prepare = [], environment = {}, memoryBytes, maxProcesses, network, container } = options;
    const sandbox = await this.driver.open({ memoryBytes, maxProcesses, network, container });
    for (const command of prepare) {
      const { status, exitCode, stderr } = await sandbox.exec({ command, environment });
      if (exitCode === 0) continue;
      await sandbox.close();
      const why = status === "exited" ? `exited with ${exitCode}: ${stderr.toString().trim().slice(-500)}` : status;
      throw new TreadleError(
        "sandbox.failed",
        `'${command.join(" ").slice(0, 100)}', which prepares a sandbox, ${why}`,
      );
    }
    return sandbox;
  }
}

/** Whether a command ended as one does whose sandbox dies. */
const isStruck = (result: unknown): boolean =>
  ["killed", "out-of-memory", "timeout"].includes((result as { status?: string } | undefined)?.status ?? "exited");

const retryable = (trajectory: string, cause: string): TreadleError =>
  new TreadleError(
    "sandbox.failed",
    `the sandbox of trajectory '${trajectory}' died: ${cause}; the next attempt gets another`,
  );
