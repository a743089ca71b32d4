import { TreadleError } from "@treadle/contracts";
import {
  type ExecRequest,
  type ExecResult,
  refuseUnspeakable,
  type Sandbox,
  type SandboxDriver,
  type SandboxOptions,
} from "../drivers/sandbox.ts";
import type { ActionPool } from "./action-pool.ts";
import type { ActionContext, ActionHandle } from "./action-record.ts";

type Environment = { readonly options: SandboxOptions; sandbox: Promise<Sandbox> | undefined };

/**
 * Actions that are commands: a pool decides when and on which cores, a driver runs them in their trajectory's sandbox.
 * The sandbox starts with the first action, so a trajectory that only generates costs nothing; a sandbox that died is
 * replaced at the next attempt, without its files.
 */
export class CommandActions {
  readonly pool: ActionPool;
  readonly driver: SandboxDriver;
  readonly #environments = new Map<string, Environment>();

  constructor(pool: ActionPool, driver: SandboxDriver) {
    this.pool = pool;
    this.driver = driver;
  }

  openTrajectory(trajectory: string, options: SandboxOptions = {}): void {
    if (this.#environments.has(trajectory))
      throw new TreadleError(
        "action.invalid",
        `trajectory '${trajectory}' is open already; choose another name or close it`,
      );
    const environment: Environment = { options, sandbox: undefined };
    this.#environments.set(trajectory, environment);
    this.pool.openTrajectory(trajectory, {
      memoryBytes: options.memoryBytes,
      onClose: async () => {
        this.#environments.delete(trajectory);
        // A sandbox that did not start has nothing to close.
        await (await environment.sandbox?.catch(() => undefined))?.close();
      },
    });
  }

  /**
   * Queues a command. `spec` is an `ActionSpec`; the command gets exactly the cores it was granted, and their number,
   * and that of every other resource, as TREADLE_UNITS_<RESOURCE>. `started` runs when an attempt begins.
   */
  submit(
    trajectory: string,
    spec: object,
    request: ExecRequest,
    started?: (context: ActionContext) => void,
  ): ActionHandle<ExecResult> {
    this.#environmentOf(trajectory);
    refuseUnspeakable(request);
    return this.pool.submit({ ...spec, trajectory }, async (context) => {
      started?.(context);
      const sandbox = await this.#sandbox(trajectory);
      const cores = Object.values(context.allocation).flatMap((grant) => grant.cores ?? []);
      const units = Object.entries(context.allocation).map(([resource, grant]) => [
        `TREADLE_UNITS_${resource.toUpperCase().replaceAll(/[^A-Z0-9]/g, "_")}`,
        String(grant.units),
      ]);
      try {
        return await sandbox.exec({
          ...request,
          environment: { ...Object.fromEntries(units), ...request.environment },
          ...(cores.length > 0 ? { cores } : {}),
          signal: request.signal === undefined ? context.signal : AbortSignal.any([request.signal, context.signal]),
        });
      } catch (error) {
        const environment = this.#environments.get(trajectory);
        if (environment !== undefined) environment.sandbox = undefined;
        await sandbox.close();
        throw error;
      }
    });
  }

  async writeFile(trajectory: string, path: string, data: string | Uint8Array): Promise<void> {
    await (await this.#sandbox(trajectory)).writeFile(path, data);
  }

  async readFile(trajectory: string, path: string, maxBytes?: number): Promise<Buffer> {
    return (await this.#sandbox(trajectory)).readFile(path, maxBytes);
  }

  async closeTrajectory(trajectory: string): Promise<void> {
    this.#environmentOf(trajectory);
    await this.pool.closeTrajectory(trajectory);
  }

  /** Closes the pool, every trajectory and the driver. */
  async close(): Promise<void> {
    await this.pool.close();
    await this.driver.close();
  }

  #environmentOf(trajectory: string): Environment {
    const environment = this.#environments.get(trajectory);
    if (environment === undefined)
      throw new TreadleError("action.invalid", `trajectory '${trajectory}' is not open; open it first`);
    return environment;
  }

  #sandbox(trajectory: string): Promise<Sandbox> {
    const environment = this.#environmentOf(trajectory);
    environment.sandbox ??= this.driver.open(environment.options).catch((error: unknown) => {
      environment.sandbox = undefined;
      throw error;
    });
    return environment.sandbox;
  }
}
