/**
 * A rollout on virtual time, event by event: drives the pure decisions (`queueKey`, `Admission`, `EpisodeRouter`) with
 * the times of `VirtualWorker`. O(log n) an event. All of one instant goes in rounds: steps that end, by worker and
 * trajectory; steps that are submitted, by trajectory; admissions, by worker. What these make due at the same instant is
 * the next round.
 */
import { interferenceFactor } from "../interference.ts";
import { EpisodeRouter } from "../live/router.ts";
import { Admission, requestsOf } from "./admission.ts";
import { IndexedHeap } from "./indexed-heap.ts";
import { LeastTree } from "./least-tree.ts";
import { nowhere } from "./migration.ts";
import type { Outcome } from "./outcome.ts";
import { type PlacementOptions, placementPolicy } from "./placement.ts";
import type { RolloutProblem } from "./problem.ts";
import { predicts, preempts, queueKey } from "./queue-order.ts";
import { VirtualWorker } from "./virtual-worker.ts";
import { WorkerLoads } from "./worker-loads.ts";

/** What is asked of a trajectory's progress, for tests and tables. */
export type RolloutObserver = {
  readonly admitted?: (trajectory: number, worker: number, atSeconds: number) => void;
  readonly evicted?: (trajectory: number, worker: number, atSeconds: number) => void;
  /** the step that ended generated this many tokens */
  readonly ended?: (trajectory: number, worker: number, tokens: number, atSeconds: number) => void;
};

/** Who predicts while it runs; without it predictions are those of the problem's steps. */
export type Forecast = {
  /** The step before that one has ended, and calls a tool. */
  readonly stepEnded: (trajectory: number, step: number) => void;
  /** That step, which is not the first, is submitted: the tool before it has answered. */
  readonly submitted: (trajectory: number, step: number) => void;
  readonly finished: (trajectory: number) => void;
  /** As of now, from that step on; asked only by ways that heed it. */
  readonly tokensLeft: (trajectory: number, step: number) => number;
  readonly toolSecondsLeft: (trajectory: number, step: number) => number;
};

export type EventOptions = PlacementOptions & {
  readonly observer?: RolloutObserver | undefined;
  readonly forecast?: Forecast | undefined;
};

export function runEvents(problem: RolloutProblem, options: EventOptions = {}): Outcome {
  return new EventEngine(problem, options).run();
}

class EventEngine {
  readonly #problem: RolloutProblem;
  readonly #observer: RolloutObserver;
  readonly #forecast: Forecast;
  readonly #router: EpisodeRouter;
  readonly #groupSizes: readonly number[] | null;
  readonly #keyOf: ReturnType<typeof queueKey>;
  readonly #admissions: readonly Admission[];
  readonly #workers: readonly VirtualWorker[];
  /** of each worker with a full batch, since nothing waits at another */
  readonly #fullTokenSeconds: readonly number[];
  /** when each worker's next requests end */
  readonly #nextEnds: LeastTree;
  /** when each trajectory's next step is submitted; `#coming` has those whose step is not submitted yet */
  readonly #submitAt: Float64Array;
  readonly #coming: IndexedHeap;
  readonly #step: Int32Array;
  readonly #attempt: Int32Array;
  /** 1 while a trajectory's keys and values are on their way */
  readonly #isMoving: Uint8Array;
  readonly #context: Float64Array;
  readonly #generated: Float64Array;
  /** tokens, those of a prefill included, that are left of a queued request */
  readonly #work: Float64Array;
  readonly #queuedAt: Float64Array;
  readonly #queueDelay: Float64Array;
  readonly #finish: Float64Array;
  readonly #touched = new Set<number>();
  #now = 0;
  #events = 0;
  #preemptions = 0;
  #migrations = 0;
  #exposedMigration = 0;
  #cacheMisses = 0;

  constructor(problem: RolloutProblem, { observer = {}, forecast, ...placing }: EventOptions) {
    const { trajectories, workers, F, maxBatch, scheduler, priority } = problem;
    const n = trajectories.length;
    this.#problem = problem;
    this.#observer = observer;
    this.#forecast = forecast ?? {
      ...{ stepEnded: () => {}, submitted: () => {}, finished: () => {} },
      tokensLeft: (trajectory, step) => trajectories[trajectory]!.steps[step]!.pred,
      toolSecondsLeft: (trajectory, step) => trajectories[trajectory]!.steps[step]!.predTool,
    };
    const loads = new WorkerLoads(workers.length);
    const policy = placementPolicy(problem, loads, placing);
    this.#groupSizes = policy.groupSizes;
    this.#router = new EpisodeRouter({ numEpisodes: n, policy, loads });
    this.#keyOf = queueKey(scheduler, priority);
    const requests = requestsOf(n);
    const [ends, places] = [new Float64Array(n), new Int32Array(n)];
    const factor = interferenceFactor(F);
    this.#admissions = workers.map(() => new Admission(requests, { maxBatch, isPreemptive: preempts(scheduler) }));
    this.#workers = workers.map(({ tokenTime }) => new VirtualWorker(tokenTime, factor, ends, places));
    this.#fullTokenSeconds = workers.map(({ tokenTime }) => tokenTime * factor(maxBatch));
    this.#nextEnds = new LeastTree(workers.length, Number.POSITIVE_INFINITY);
    this.#submitAt = new Float64Array(n);
    this.#coming = new IndexedHeap(new Int32Array(n), (a, b) => {
      const [x, y] = [this.#submitAt[a]!, this.#submitAt[b]!];
      return x < y || (x === y && a < b);
    });
    this.#step = new Int32Array(n);
    this.#attempt = new Int32Array(n);
    this.#isMoving = new Uint8Array(n);
    this.#context = Float64Array.from(trajectories, ({ context }) => context);
    this.#generated = new Float64Array(n);
    this.#work = new Float64Array(n);
    this.#queuedAt = new Float64Array(n);
    this.#queueDelay = new Float64Array(n);
    // What never finishes keeps this, as where times outgrow what a number holds.
    this.#finish = new Float64Array(n).fill(Number.POSITIVE_INFINITY);
  }

  run(): Outcome {
    for (let i = 0; i < this.#submitAt.length; i++) this.#coming.push(i);
    for (;;) {
      const first = this.#coming.head;
      const submission = first === undefined ? Number.POSITIVE_INFINITY : this.#submitAt[first]!;
      this.#now = Math.min(this.#nextEnds.least, submission);
      if (!(this.#now < Number.POSITIVE_INFINITY)) break;
      this.#endSteps();
      this.#submitSteps();
      this.#admit();
    }
    return {
      finish: this.#finish,
      queueDelay: this.#queueDelay,
      preemptions: this.#preemptions,
      migrations: this.#migrations,
      exposedMigration: this.#exposedMigration,
      cacheMisses: this.#cacheMisses,
      groupSizes: this.#groupSizes,
      events: this.#events,
    };
  }

  #endSteps(): void {
    while (this.#nextEnds.least === this.#now) {
      const worker = this.#nextEnds.slot;
      this.#nextEnds.set(worker, Number.POSITIVE_INFINITY);
      this.#touch(worker);
      for (const trajectory of this.#workers[worker]!.takeEnded()) {
        this.#admissions[worker]!.finish(trajectory);
        this.#endStep(trajectory, worker);
      }
    }
  }

  #endStep(trajectory: number, worker: number): void {
    this.#events++;
    const { steps } = this.#problem.trajectories[trajectory]!;
    const { tokens, tool, observe } = steps[this.#step[trajectory]!]!;
    this.#generated[trajectory]! += tokens;
    this.#context[trajectory]! += tokens + observe;
    this.#step[trajectory]!++;
    this.#observer.ended?.(trajectory, worker, tokens, this.#now);
    const next = steps[this.#step[trajectory]!];
    if (next === undefined) {
      this.#finish[trajectory] = this.#now;
      this.#router.ended(trajectory, this.#attempt[trajectory]!);
      this.#forecast.finished(trajectory);
      return;
    }
    this.#submitAt[trajectory] = this.#now + Math.max(tool, this.#migrate(trajectory, tool));
    this.#coming.push(trajectory);
  }

  /** Seconds that the trajectory moves for, 0 when it stays. */
  #migrate(trajectory: number, tool: number): number {
    const { base, perToken } = this.#problem.migration;
    const transferSeconds = base + perToken * this.#context[trajectory]!;
    const step = this.#step[trajectory]!;
    this.#forecast.stepEnded(trajectory, step);
    const prediction = this.#problem.placement.migrate === true && {
      remainingTokens: this.#forecast.tokensLeft(trajectory, step),
      generatedTokens: this.#generated[trajectory]!,
      transferSeconds,
    };
    const orders = this.#router.turnEnded(trajectory, this.#attempt[trajectory]!, prediction || undefined);
    this.#isMoving[trajectory] = orders.length;
    if (orders.length === 0) return 0;
    this.#migrations++;
    this.#exposedMigration += Math.max(0, transferSeconds - tool);
    return transferSeconds;
  }

  #submitSteps(): void {
    for (
      let trajectory = this.#coming.head;
      trajectory !== undefined && this.#submitAt[trajectory] === this.#now;
      trajectory = this.#coming.head
    ) {
      this.#coming.pop();
      this.#submit(trajectory);
    }
  }

  #submit(trajectory: number): void {
    this.#events++;
    const step = this.#step[trajectory]!;
    const { tokens } = this.#problem.trajectories[trajectory]!.steps[step]!;
    const home = this.#router.homeOf(trajectory);
    // Where there is room for any number, what is offered runs at once.
    const [order] =
      step === 0 ? this.#router.offer(trajectory) : this.#router.left(trajectory, this.#attempt[trajectory]!);
    const { rank: worker, attempt } = order!;
    this.#attempt[trajectory] = attempt;
    this.#work[trajectory] = tokens;
    // What moved has brought its keys and values along.
    if (worker !== home && this.#isMoving[trajectory] === 0) {
      this.#work[trajectory] = tokens + this.#problem.prefillRatio * this.#context[trajectory]!;
      if (home !== nowhere) this.#cacheMisses++;
    }
    this.#isMoving[trajectory] = 0;
    const generatedTokens = this.#generated[trajectory]!;
    if (step > 0) this.#forecast.submitted(trajectory, step);
    const { scheduler } = this.#problem;
    const predictedTokens = predicts(scheduler) ? this.#forecast.tokensLeft(trajectory, step) : 0;
    const toolSeconds = scheduler === "time" ? this.#forecast.toolSecondsLeft(trajectory, step) : 0;
    const predictedSeconds = predictedTokens * this.#fullTokenSeconds[worker]! + toolSeconds;
    const submittedAt = this.#now;
    const key = this.#keyOf({ trajectory, submittedAt, predictedTokens, predictedSeconds, generatedTokens });
    this.#admissions[worker]!.submit(trajectory, key);
    this.#queuedAt[trajectory] = this.#now;
    this.#touch(worker);
  }

  #touch(worker: number): void {
    if (this.#touched.has(worker)) return;
    this.#touched.add(worker);
    this.#workers[worker]!.advance(this.#now);
  }

  #admit(): void {
    for (const worker of [...this.#touched].sort((a, b) => a - b)) {
      const engine = this.#workers[worker]!;
      for (const { type, trajectory } of this.#admissions[worker]!.decide()) {
        if (type === "evicted") {
          this.#work[trajectory] = engine.stop(trajectory);
          this.#queuedAt[trajectory] = this.#now;
          this.#preemptions++;
        } else {
          engine.start(trajectory, this.#work[trajectory]!);
          this.#queueDelay[trajectory]! += this.#now - this.#queuedAt[trajectory]!;
        }
        this.#observer[type]?.(trajectory, worker, this.#now);
      }
      this.#nextEnds.set(worker, engine.nextEnd);
    }
    this.#touched.clear();
  }
}
