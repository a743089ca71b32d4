/**
 * One resource under a policy on virtual time: the scheduler and a manager are those that run live, the clock is the
 * event queue, and an execution is a delay.
 *
 * VP1 a pool of the manager (the cores of a node) is decided about alone, at most once at any time, when something was
 *    submitted there or has ended.
 * VP2 no decision is made where nothing is free: nobody could start.
 */
import type {
  Busy,
  DecideOptions,
  Grant,
  QueuedAction,
  ResourceManager,
  ResourceRequest,
} from "@treadle/actions/state-machines";
import { decide } from "@treadle/actions/state-machines";
import type { EventQueue } from "../event-queue.ts";

export type VirtualAction = {
  /** what the scheduler sees; its demands are of the manager's resource alone */
  readonly queued: () => QueuedAction;
  readonly request: ResourceRequest;
  /** from the grant to the end, preparation included */
  readonly secondsOn: (units: number, grant: Grant) => number;
  readonly ended: (completionSeconds: number, heldUnitSeconds: number) => void;
};

/** A manager of devices is told that memory was freed. */
type VirtualManager = ResourceManager & { verifyFreed?(actionId: string, freeBytes: readonly number[]): boolean };

type Waiting = { readonly action: VirtualAction; readonly sinceMs: number };
type Running = {
  readonly units: number;
  readonly grantedMs: number;
  readonly expected: number;
  readonly fixed: boolean;
};
type Pool = { waiting: Waiting[]; readonly running: Set<Running>; isDue: boolean };

export class VirtualPool {
  readonly #queue: EventQueue;
  readonly #manager: VirtualManager;
  readonly #options: DecideOptions;
  readonly #pools = new Map<string, Pool>();
  /** whom the manager had no pool for yet */
  #homeless: Waiting[] = [];

  constructor(queue: EventQueue, manager: VirtualManager, options: DecideOptions) {
    this.#queue = queue;
    this.#manager = manager;
    this.#options = options;
    for (const pool of manager.pools(0).keys())
      this.#pools.set(pool, { waiting: [], running: new Set(), isDue: false });
  }

  submit(action: VirtualAction): void {
    const waiting = { action, sinceMs: this.#queue.nowMs };
    // First come, first served among those who look for a pool, too.
    if (this.#homeless.length > 0 && this.#homeOf(action) === undefined) this.#homeless.push(waiting);
    else if (!this.#place(waiting)) this.#homeless.push(waiting);
  }

  /** What its trajectories reserved is free again. */
  endTrajectory(trajectory: string): void {
    this.#manager.endTrajectory(trajectory);
    this.#placeHomeless();
  }

  #homeOf({ request }: VirtualAction): string | undefined {
    return request.trajectory === undefined ? undefined : this.#manager.home(request.trajectory);
  }

  #place(waiting: Waiting): boolean {
    const name = this.#manager.bind(waiting.action.request, this.#queue.nowMs);
    if (name === undefined) return false;
    this.#pools.get(name)!.waiting.push(waiting);
    this.#wake(name);
    return true;
  }

  #placeHomeless(): void {
    while (this.#homeless.length > 0 && this.#place(this.#homeless[0]!)) this.#homeless.shift();
  }

  /** VP1 */
  #wake(name: string): void {
    const pool = this.#pools.get(name)!;
    if (pool.isDue) return;
    pool.isDue = true;
    this.#queue.after(0, () => {
      pool.isDue = false;
      while (pool.waiting.length > 0 && this.#startSome(name, pool)) {}
    });
  }

  #startSome(name: string, pool: Pool): boolean {
    const now = this.#queue.nowMs;
    const state = this.#manager.pools(now).get(name)!;
    if (state.free < 1) return false; // VP2
    const waiting = pool.waiting.map(({ action, sinceMs }) => ({
      ...action.queued(),
      waitedSeconds: (now - sinceMs) / 1000,
    }));
    const busy: Busy[] = [];
    for (const { units, grantedMs, expected, fixed } of pool.running) {
      const elapsed = (now - grantedMs) / 1000;
      // Late already: as long again as it has taken so far.
      busy.push({ units, fixed, endsInSeconds: expected > elapsed ? expected - elapsed : Math.max(elapsed, 0.001) });
    }
    const { resource } = this.#manager;
    const { selected } = decide(waiting, new Map([[resource, { ...state, busy }]]), this.#options);
    if (selected.length === 0) return false;
    const positions = new Map(waiting.map(({ id }, i) => [id, i]));
    const started = new Set<Waiting>();
    // Largest first: managers that cut intervals rely on it.
    const ordered = [...selected].sort((a, b) => b.allocation[resource]! - a.allocation[resource]!);
    for (const { id, allocation, seconds } of ordered) {
      const at = positions.get(id)!;
      const units = allocation[resource]!;
      const isFixed = waiting[at]!.elastic === undefined;
      if (this.#start(name, pool, pool.waiting[at]!, units, seconds, isFixed)) started.add(pool.waiting[at]!);
    }
    pool.waiting = pool.waiting.filter((one) => !started.has(one));
    return started.size > 0;
  }

  #start(
    name: string,
    pool: Pool,
    { action, sinceMs }: Waiting,
    units: number,
    expected: number | undefined,
    fixed: boolean,
  ): boolean {
    const now = this.#queue.nowMs;
    const { actionId } = action.request;
    const grant = this.#manager.acquire(name, action.request, units, now);
    if (grant === undefined) return false;
    const { devices } = grant;
    // What was evicted gives its memory back at once here.
    if (devices?.restore)
      this.#manager.verifyFreed?.(actionId, new Array(devices.chunk.size).fill(devices.neededBytes));
    const seconds = action.secondsOn(units, grant);
    const running: Running = { units, grantedMs: now, expected: expected ?? 1, fixed };
    pool.running.add(running);
    this.#queue.after(seconds * 1000, () => {
      pool.running.delete(running);
      this.#manager.release(actionId, this.#queue.nowMs);
      action.ended((this.#queue.nowMs - sinceMs) / 1000, units * seconds);
      this.#wake(name);
      this.#placeHomeless();
    });
    return true;
  }
}
