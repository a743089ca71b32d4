/**
 * Actions that are told to held shells: a pool decides when and on which cores, a driver holds the shells.
 *
 * Owned here: the shells and their sandboxes, the reservations of trajectories, the count of core time.
 *
 * SA1 with scheduling `action`, cores belong to an action while it runs (allocate-on-execution, ARL-Tangram §5.2); with
 *    `trajectory`, the baseline, to a trajectory from its first action to its end or `rest`, also while its model thinks.
 * SA2 with sandboxes by `slot`, whoever is granted some cores uses the sandbox of those cores, so nobody shares one at a
 *    time, and files outlive trajectories: for tools that keep nothing. By `trajectory`, each has its own from its first
 *    action to its end.
 *    One whose sandbox died with the files of its actions ends with `sandbox.lost`; nothing else is put in its place.
 * SA3 after `closeTrajectory` nothing of it runs or is held; after `close`, nothing at all.
 */
import { type Clock, TreadleError } from "@treadle/contracts";
import { systemClock } from "@treadle/transport";
import type { z } from "zod";
import type { HeldShell, ShellRequest, ShellResult } from "../drivers/held-shell.ts";
import { isCutShort, type Sandbox, type SandboxDriver, type SandboxOptions } from "../drivers/sandbox.ts";
import type { ActionSpec } from "../formulation/action-spec.ts";
import type { Grant } from "../managers/manager.ts";
import type { ActionPool } from "./action-pool.ts";
import type { ActionContext, ActionHandle } from "./action-record.ts";

export type ShellActionsOptions = {
  readonly pool: ActionPool;
  readonly driver: SandboxDriver;
  readonly scheduling: "action" | "trajectory";
  readonly sandboxes: "slot" | "trajectory";
  readonly sandbox?: SandboxOptions | undefined;
  /** the pool's; default: real time */
  readonly clock?: Clock | undefined;
};

/** How an action went. The three times together are its completion time (ACT). */
export type ShellAction = ShellResult & {
  readonly queueingSeconds: number;
  readonly executionSeconds: number;
  /** opening a sandbox, starting a shell, moving cores, and the way there and back */
  readonly overheadSeconds: number;
  /** when it was granted its cores, as the clock says */
  readonly grantedMs: number;
  readonly cores: readonly number[];
  /** why it was granted those, in words */
  readonly why: string;
};

/** Core-seconds since the beginning: granted to somebody, and of those, spent in actions. */
export type CoreTime = { readonly heldSeconds: number; readonly busySeconds: number };

type Allocation = Readonly<Record<string, Grant>>;
type Shell = { readonly sandbox: Sandbox; readonly shell: HeldShell };
type Reservation = {
  readonly handle: ActionHandle<void>;
  readonly granted: Promise<Allocation>;
  /** gives the cores back, or stops waiting for them */
  readonly end: () => void;
};
type Trajectory = {
  readonly closing: AbortController;
  readonly running: Set<Promise<unknown>>;
  shell: Promise<Shell> | undefined;
  /** something was run in its sandbox */
  hasState: boolean;
  lost: TreadleError | undefined;
  reservation: Reservation | undefined;
};

export class ShellActions {
  readonly #options: ShellActionsOptions;
  readonly #clock: Clock;
  readonly #trajectories = new Map<string, Trajectory>();
  /** by core numbers */
  readonly #slots = new Map<string, Promise<Shell>>();
  /** grants under way: number of cores, and since when */
  readonly #holds = new Map<object, { readonly cores: number; readonly sinceMs: number }>();
  #heldSeconds = 0;
  #busySeconds = 0;

  constructor(options: ShellActionsOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
  }

  openTrajectory(trajectory: string): void {
    if (this.#trajectories.has(trajectory)) {
      throw new TreadleError(
        "action.invalid",
        `trajectory '${trajectory}' is open already; choose another name or close it`,
      );
    }
    this.#trajectories.set(trajectory, {
      closing: new AbortController(),
      running: new Set(),
      shell: undefined,
      hasState: false,
      lost: undefined,
      reservation: undefined,
    });
    if (this.#options.sandboxes === "trajectory") {
      this.#options.pool.openTrajectory(trajectory, { memoryBytes: this.#options.sandbox?.memoryBytes });
    }
  }

  /**
   * Tells a shell of the trajectory. `spec` is an `ActionSpec` whose cost has `cpu`; the action runs on the cores that it
   * was granted and finds their number in TREADLE_UNITS_CPU. Rejects as a pool's action does.
   */
  async run(trajectory: string, spec: z.input<typeof ActionSpec>, request: ShellRequest): Promise<ShellAction> {
    const state = this.#stateOf(trajectory);
    const { pool, scheduling, sandboxes } = this.#options;
    const clock = this.#clock;
    const submittedMs = clock.now();
    // Only a sandbox of its own ties a trajectory to a node and to memory there.
    const tied = sandboxes === "trajectory" ? { ...spec, trajectory } : spec;
    let grantedMs = submittedMs;
    let cores: readonly number[] = [];
    let why = "its trajectory holds them";
    const execute = async (allocation: Allocation, context?: ActionContext): Promise<ShellResult> => {
      grantedMs = clock.now();
      cores = coresOf(allocation);
      const signals = [state.closing.signal, request.signal, context?.signal].filter((one) => one !== undefined);
      const environment = { TREADLE_UNITS_CPU: String(cores.length), ...request.environment };
      const told = { ...request, environment, cores, signal: AbortSignal.any(signals) };
      const asked = this.#ask(state, told, () => context?.begin());
      state.running.add(asked);
      try {
        const result = await asked;
        if (isCutShort(result)) context?.wasCut();
        return result;
      } finally {
        state.running.delete(asked);
      }
    };
    let result: ShellResult;
    if (scheduling === "trajectory") {
      state.reservation ??= this.#reserve(tied);
      const { granted, handle } = state.reservation;
      result = await execute(await Promise.race([granted, handle.result.then(() => closed(trajectory))]));
    } else {
      const handle = pool.submit(tied, (context) =>
        this.#holding(context, () => {
          why = context.why;
          return execute(context.allocation, context);
        }),
      );
      const cancel = (): void => handle.cancel(`trajectory '${trajectory}' was closed`);
      state.closing.signal.addEventListener("abort", cancel, { once: true });
      result = await handle.result;
      state.closing.signal.removeEventListener("abort", cancel);
    }
    const completionSeconds = (clock.now() - submittedMs) / 1000;
    const queueingSeconds = (grantedMs - submittedMs) / 1000;
    this.#busySeconds += result.seconds * cores.length;
    return {
      ...result,
      queueingSeconds,
      executionSeconds: result.seconds,
      overheadSeconds: Math.max(0, completionSeconds - queueingSeconds - result.seconds),
      grantedMs,
      cores,
      why,
    };
  }

  /** SA3. Waiting and running actions of the trajectory end with `action.cancelled` or as cancelled. */
  async closeTrajectory(trajectory: string): Promise<void> {
    const state = this.#stateOf(trajectory);
    this.#trajectories.delete(trajectory);
    state.closing.abort();
    await Promise.allSettled(state.running);
    if (this.#options.sandboxes === "trajectory") await this.#options.pool.closeTrajectory(trajectory);
    await (await state.shell?.catch(() => undefined))?.sandbox.close();
    state.reservation?.end();
    await state.reservation?.handle.result.catch(() => {});
  }

  /** SA1. Nothing of it runs: its cores are others' until its next action. */
  async rest(trajectory: string): Promise<void> {
    const state = this.#stateOf(trajectory);
    const { reservation } = state;
    state.reservation = undefined;
    reservation?.end();
    await reservation?.handle.result.catch(() => {});
  }

  coreTime(): CoreTime {
    const now = this.#clock.now();
    let heldSeconds = this.#heldSeconds;
    for (const { cores, sinceMs } of this.#holds.values()) heldSeconds += (cores * (now - sinceMs)) / 1000;
    return { heldSeconds, busySeconds: this.#busySeconds };
  }

  /** At the moment: cores granted to somebody, and actions that wait for some. */
  load(): { readonly held: number; readonly waiting: number } {
    let held = 0;
    for (const { cores } of this.#holds.values()) held += cores;
    return { held, waiting: this.#options.pool.numWaiting };
  }

  /** Closes every trajectory, the pool and the driver. */
  async close(): Promise<void> {
    for (const { reservation } of this.#trajectories.values()) reservation?.end();
    await this.#options.pool.close();
    await this.#options.driver.close();
    this.#trajectories.clear();
  }

  #stateOf(trajectory: string): Trajectory {
    const state = this.#trajectories.get(trajectory);
    if (state) return state;
    throw new TreadleError("action.invalid", `trajectory '${trajectory}' is not open; open it first`);
  }

  /** SA1: an action of its own in the pool, on its least cores, which lasts as long as the trajectory. */
  #reserve(spec: z.input<typeof ActionSpec>): Reservation {
    let release: (() => void) | undefined;
    let grant: (allocation: Allocation) => void = () => {};
    const granted = new Promise<Allocation>((resolve) => {
      grant = resolve;
    });
    const handle = this.#options.pool.submit(
      { ...spec, kind: `${spec.kind} (reservation)`, elasticity: undefined },
      (context) =>
        this.#holding(
          context,
          () =>
            new Promise<void>((resolve) => {
              release = resolve;
              context.signal.addEventListener("abort", () => resolve(), { once: true });
              grant(context.allocation);
            }),
        ),
    );
    const end = (): void => (release === undefined ? handle.cancel("its trajectory has ended") : release());
    return { handle, granted, end };
  }

  async #holding<Result>(context: ActionContext, run: () => Promise<Result>): Promise<Result> {
    const hold = { cores: coresOf(context.allocation).length, sinceMs: this.#clock.now() };
    this.#holds.set(hold, hold);
    try {
      return await run();
    } finally {
      this.#holds.delete(hold);
      this.#heldSeconds += (hold.cores * (this.#clock.now() - hold.sinceMs)) / 1000;
    }
  }

  /** `begin` runs once there is a shell to be told. */
  async #ask(state: Trajectory, request: ShellRequest, begin: () => void): Promise<ShellResult> {
    const own = this.#options.sandboxes === "trajectory";
    const slot = request.cores?.join() ?? "";
    if (state.lost !== undefined) throw state.lost;
    const opening = (own ? state.shell : this.#slots.get(slot)) ?? this.#open();
    if (own) state.shell = opening;
    else this.#slots.set(slot, opening);
    const shell = await opening.catch((error: unknown) => {
      this.#drop(state, slot, opening);
      throw error;
    });
    begin();
    let failure: unknown;
    const result = await shell.shell.ask(request).catch((error: unknown) => {
      failure = error;
      return undefined;
    });
    const { loss } = shell.sandbox;
    if (loss !== undefined && (result === undefined || (result.status !== "exited" && result.status !== "cancelled"))) {
      this.#drop(state, slot, opening);
      await shell.sandbox.close();
      if (own && state.hasState)
        state.lost = new TreadleError(
          "sandbox.lost",
          `a trajectory lost its sandbox and its files: ${loss}; open another, with more of what it lacked`,
          { details: { cause: loss } },
        );
      throw state.lost ?? new TreadleError("sandbox.failed", `a sandbox died: ${loss}; the next attempt gets another`);
    }
    state.hasState = true;
    if (result === undefined) throw failure;
    return result;
  }

  /** The next action gets another. */
  #drop(state: Trajectory, slot: string, shell: Promise<Shell>): void {
    if (state.shell === shell) state.shell = undefined;
    if (this.#slots.get(slot) === shell) this.#slots.delete(slot);
  }

  async #open(): Promise<Shell> {
    const sandbox = await this.#options.driver.open(this.#options.sandbox);
    return { sandbox, shell: sandbox.holdShell() };
  }
}

const coresOf = (allocation: Allocation): number[] => Object.values(allocation).flatMap((grant) => grant.cores ?? []);

function closed(trajectory: string): never {
  throw new TreadleError("action.cancelled", `trajectory '${trajectory}' was closed before its action began`);
}
