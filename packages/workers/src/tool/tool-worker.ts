/**
 * Answers the calls that policies make, as actions in sandboxes. It locks no device: its resources are the action pool's,
 * which is why nothing of them is held while a model generates.
 *
 * Owned here: the pool, the driver and, for each rank that calls, its open trajectories and the answers it has not
 * collected. A rank submits calls and collects answers in batches, so that any number is under way and one that takes
 * long delays nobody else's.
 *
 * TW1 `open` and `close` end whatever their owner had open: a rank that died is followed by one that opens again. `close` alone
 *    leaves what is kept.
 * TW2 a call is answered once, whatever it does; only a pool or driver that fails fails its owner's collecting.
 * TW3 an owner that is not open here, because this process is a new one, is told so with a retryable error: what its
 *    trajectories had left in sandboxes is gone, so they have to begin again.
 * TW4 a trajectory that another owner goes on with is that owner's from its next call, or its end, with its sandbox. Where that has
 *    ended with the owner before, or has run calls that the owner now knows nothing of, the call is not run, and says so.
 * TW5 a trajectory that is kept is nobody's, holds no cores, and has its sandbox until it goes on (TW4). One that no step can go on with
 *    any more, since the step that kept it was undone, ends at a later `open`.
 */
import {
  ActionHistory,
  ActionPool,
  allowedUnits,
  CpuManager,
  describeHost,
  networkOf,
  openDriver,
  type ShellAction,
  ShellActions,
  type StoredCurve,
} from "@treadle/actions";
import { TreadleError } from "@treadle/contracts";
import { Worker } from "@treadle/runtime";
import { z } from "zod";
import { sandboxGone, ToolCall, type ToolReport, type ToolResult } from "./items.ts";
import type { ToolConfig } from "./tool-config.ts";
import { ToolStatistics } from "./tool-statistics.ts";

type Owner = {
  /** open ones, and how many calls of each were run */
  readonly trajectories: Map<string, number>;
  /** of these, those that go on in a later session */
  readonly kept: Set<string>;
  readonly statistics: ToolStatistics;
  answers: ToolResult[];
  failure: unknown;
  isClosed: boolean;
  /** of trajectories that make no more calls */
  readonly endings: Set<Promise<void>>;
  /** ends the wait of `collect` */
  wake: () => void;
};

/** A trajectory that goes on in a later step. */
type Kept = { readonly numCalls: number; readonly step: number };

const Calls = z.array(ToolCall);

/** What a step leaves unfinished is another's after so many steps at most, whatever `flow.maxStaleness` allows. */
const mostStepsKept = 65;

export class ToolWorker extends Worker<ToolConfig> {
  static override readonly module: string = import.meta.url;

  #actions!: ShellActions;
  #numCores = 0;
  readonly #owners = new Map<string, Owner>();
  readonly #kept = new Map<string, Kept>();

  override async setup(): Promise<void> {
    const { policy, dop, scheduling, sandboxes, memoryMiB, diskMiB, maxProcesses, network } = this.config.actions;
    const host = firstCores(this.config.actions.cores);
    this.#numCores = host.numa.flat().length;
    const diskBytes = diskMiB === undefined ? undefined : diskMiB * 2 ** 20;
    const sandbox = { memoryBytes: memoryMiB * 2 ** 20, diskBytes, maxProcesses, network: networkOf(network) };
    const driver = await openDriver(this.config.actions, sandbox);
    const cpu = new CpuManager({ nodes: [host], trajectoryMemoryBytes: sandbox.memoryBytes });
    const pool = new ActionPool({
      managers: [cpu],
      decide: { policy, dop },
      history: new ActionHistory(this.#stored()),
    });
    this.#actions = new ShellActions({ pool, driver, scheduling, sandboxes, sandbox });
    this.log.info(
      `calls of '${this.config.name}' run on ${this.#numCores} cores, scheduled by ${scheduling} with policy '${policy}'; driver '${driver.name}' isolates: ${driver.isolation}`,
    );
  }

  /** What the configuration says of its calls, as a service has it of a kind: executions correct it. */
  #stored(): ReadonlyMap<string, StoredCurve> | undefined {
    const { name, cores, elasticity, duration } = this.config;
    if (elasticity === undefined || duration === undefined) return undefined;
    const units = allowedUnits(cores);
    return new Map([[name, { elasticity, duration, resource: "cpu", units: { min: units[0]!, max: units.at(-1)! } }]]);
  }

  override async teardown(): Promise<void> {
    await this.#actions.close();
  }

  /** Begins a session of a rank, by the rank's name (TW1). */
  async open(owner: string): Promise<{ readonly isStateful: boolean }> {
    await Promise.all([this.#close(owner), this.#endForgotten()]);
    this.#owners.set(owner, {
      trajectories: new Map(),
      kept: new Set(),
      statistics: new ToolStatistics(performance.now(), this.#actions.coreTime()),
      answers: [],
      failure: undefined,
      isClosed: false,
      endings: new Set(),
      wake: () => {},
    });
    return { isStateful: this.#isStateful };
  }

  get #isStateful(): boolean {
    return this.config.actions.sandboxes === "trajectory";
  }

  /**
   * Starts calls, ends trajectories that make no more, and keeps those that go on in a later session (TW5). Answers come from
   * `collect`.
   */
  async submit(
    owner: string,
    calls: readonly ToolCall[],
    ended: readonly string[],
    kept: readonly string[] = [],
  ): Promise<void> {
    const state = this.#ownerOf(owner);
    for (const { trajectory, text, numAnswered } of Calls.parse(calls)) {
      const numCalls = this.#adopt(state, trajectory);
      if (this.#isStateful && numAnswered > 0 && numCalls !== numAnswered) {
        const what = numCalls === undefined ? "is gone with the rank that called last" : `has run '${numCalls}' calls`;
        const output = `the sandbox of '${trajectory}' ${what}, where '${numAnswered}' were answered; its trajectory begins again`;
        state.answers.push({ trajectory, status: sandboxGone, exitCode: null, output });
        state.wake();
        continue;
      }
      if (numCalls === undefined) this.#actions.openTrajectory(trajectory);
      state.trajectories.set(trajectory, numAnswered + 1);
      this.#run(state, trajectory, text);
    }
    // What they hold is given back beside whatever comes next; `close` waits for it.
    for (const trajectory of ended) {
      this.#adopt(state, trajectory);
      this.#ending(state, this.#end(state, trajectory));
    }
    for (const trajectory of kept) {
      if (this.#adopt(state, trajectory) === undefined) continue;
      state.kept.add(trajectory);
      this.#ending(state, this.#actions.rest(trajectory));
    }
  }

  #ending(state: Owner, act: Promise<void>): void {
    const ending = act.catch((error: unknown) => this.#fail(state, error));
    state.endings.add(ending);
    void ending.then(() => state.endings.delete(ending));
  }

  /** The answers since the last time, at least one; none when the session was closed meanwhile. */
  async collect(owner: string): Promise<ToolResult[]> {
    const state = this.#ownerOf(owner);
    while (state.answers.length === 0 && state.failure === undefined && !state.isClosed) {
      await new Promise<void>((resolve) => {
        state.wake = resolve;
      });
    }
    if (state.failure !== undefined) throw state.failure;
    const { answers } = state;
    state.answers = [];
    return answers;
  }

  /** What happened since the last report, or since the session began. */
  async report(owner: string): Promise<ToolReport> {
    const { statistics } = this.#ownerOf(owner);
    return statistics.report(performance.now(), this.#actions.coreTime(), this.#numCores);
  }

  /** Ends what is not kept. */
  async close(owner: string): Promise<void> {
    const state = this.#owners.get(owner);
    for (const name of state?.kept ?? []) {
      const numCalls = state?.trajectories.get(name);
      if (numCalls === undefined) continue; // another owner goes on with it by now
      state?.trajectories.delete(name);
      this.#kept.set(name, { numCalls, step: this.#stepNow });
    }
    await this.#close(owner);
  }

  async #close(owner: string): Promise<void> {
    const state = this.#owners.get(owner);
    if (!state) return;
    this.#owners.delete(owner);
    state.isClosed = true;
    state.wake();
    await Promise.all([...state.endings, ...[...state.trajectories.keys()].map((name) => this.#end(state, name))]);
  }

  get #stepNow(): number {
    return this.step ?? 0;
  }

  /** TW5 */
  async #endForgotten(): Promise<void> {
    const now = this.#stepNow;
    const names = [...this.#kept].flatMap(([name, { step }]) =>
      step > now || step < now - mostStepsKept ? [name] : [],
    );
    for (const name of names) this.#kept.delete(name);
    await Promise.all(names.map((name) => this.#actions.closeTrajectory(name)));
  }

  #ownerOf(owner: string): Owner {
    const state = this.#owners.get(owner);
    if (state) return state;
    throw new TreadleError(
      "sandbox.failed",
      `'${owner}' has no session here: its sandboxes are gone with the process that held them; its trajectories begin again`,
    );
  }

  /** TW4. How many calls of the trajectory were run, whoever had it; undefined where it is not open. */
  #adopt({ trajectories }: Owner, trajectory: string): number | undefined {
    const own = trajectories.get(trajectory);
    if (own !== undefined) return own;
    const other = [...this.#owners.values()].find((one) => one.trajectories.has(trajectory))?.trajectories;
    const numCalls = other?.get(trajectory) ?? this.#kept.get(trajectory)?.numCalls;
    if (numCalls === undefined) return undefined;
    other?.delete(trajectory);
    this.#kept.delete(trajectory);
    trajectories.set(trajectory, numCalls);
    return numCalls;
  }

  async #end(state: Owner, trajectory: string): Promise<void> {
    if (state.trajectories.delete(trajectory)) await this.#actions.closeTrajectory(trajectory);
  }

  #run(state: Owner, trajectory: string, text: string): void {
    const { name, program, cores, elasticity, actions } = this.config;
    const { timeoutMs, maxOutputBytes } = actions;
    const spec = {
      kind: name,
      cost: { cpu: cores },
      key: "cpu",
      ...(elasticity && { elasticity }),
      // A sandbox that died under an action is replaced.
      retries: { limit: 1 },
    };
    this.#actions.run(trajectory, spec, { program, args: [text], timeoutMs, maxOutputBytes }).then(
      (action) => {
        state.statistics.add(action);
        this.#trace(action);
        const { status, exitCode, output } = action;
        state.answers.push({ trajectory, status, exitCode, output: output.toString() });
        state.wake();
      },
      (error: unknown) => {
        // What a policy does to its sandbox is its own outcome, not the pool's.
        if (!(error instanceof TreadleError) || error.code !== "sandbox.lost") return this.#fail(state, error);
        state.answers.push({ trajectory, status: "sandbox-lost", exitCode: null, output: error.message });
        state.wake();
      },
    );
  }

  #fail(state: Owner, error: unknown): void {
    if (state.isClosed) return;
    state.failure ??= error;
    state.wake();
  }

  /** The action on the lanes of its cores. */
  #trace(action: ShellAction): void {
    const { status, queueingSeconds, executionSeconds, overheadSeconds, cores, grantedMs, why } = action;
    const { policy, scheduling } = this.config.actions;
    const startMs = this.tracer.now() - performance.now() + grantedMs;
    const endMs = startMs + 1000 * (executionSeconds + overheadSeconds);
    this.tracer.complete(this.config.name, "compute", startMs, endMs, {
      devices: cores.map((core) => `core:${core}`),
      attributes: {
        status,
        queueingMs: rounded(queueingSeconds),
        executionMs: rounded(executionSeconds),
        overheadMs: rounded(overheadSeconds),
        policy,
        scheduling,
        why,
      },
    });
    this.tracer.counter("cores", this.#actions.load());
  }
}

/** In milliseconds, to the microsecond: there is one span for every call. */
const rounded = (seconds: number): number => Math.round(seconds * 1e6) / 1e3;

/** This machine with as many of its cores as were asked for. */
function firstCores(count: number | "all"): ReturnType<typeof describeHost> {
  const host = describeHost();
  const all = host.numa.flat();
  if (count === "all") return host;
  if (count > all.length) {
    throw new TreadleError(
      "config.invalid",
      `actions.cores is '${count}': allowed is 1 to ${all.length}, the cores of this machine, or 'all'`,
    );
  }
  const kept = new Set(all.slice(0, count));
  const numa = host.numa.map((cores) => cores.filter((core) => kept.has(core))).filter((cores) => cores.length > 0);
  return { ...host, numa };
}
