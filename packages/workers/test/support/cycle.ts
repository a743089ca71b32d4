/** Simulators and policies in one process, over channels of which a drawn order says who goes on next. */
import type { ActorCriticConfig } from "@treadle/engines";
import { createRandom } from "@treadle/learning";
import type { BatchOptions, Sink, Source } from "@treadle/runtime";
import { ControlRolloutWorker } from "../../src/rollout/control-rollout-worker.ts";
import type { Action, Observation, Trajectory } from "../../src/simulator/items.ts";
import { type SimulatorConfig, SimulatorWorker } from "../../src/simulator/simulator-worker.ts";
import { contextOf } from "./context.ts";
import { Group } from "./group.ts";

export type Cycle = {
  readonly simulators: number;
  readonly policies: number;
  readonly simulator: SimulatorConfig;
  readonly model: ActorCriticConfig;
  readonly maxBatch?: number | undefined;
  readonly horizon: number;
  readonly calls: number;
  /** decides the order in which takes are answered */
  readonly order: string;
};

type Waiting = { readonly isReady: () => boolean; readonly answer: () => void };

/** By environment of each call, and what each simulator reported. */
export type Played = { readonly trajectories: Trajectory[][]; readonly reports: Record<string, number>[][] };

/** Takes are answered one at a time, and which comes next is drawn: nothing else may decide what is made. */
class DrawnOrder {
  readonly #waiting: Waiting[] = [];
  readonly #random: ReturnType<typeof createRandom>;

  constructor(seed: string) {
    this.#random = createRandom(seed);
  }

  wait(waiting: Waiting): void {
    this.#waiting.push(waiting);
  }

  /** Undefined when nobody who waits can go on. */
  next(): (() => void) | undefined {
    const ready = this.#waiting.filter(({ isReady }) => isReady());
    const chosen = ready[Math.floor(this.#random.float() * ready.length)];
    if (!chosen) return undefined;
    this.#waiting.splice(this.#waiting.indexOf(chosen), 1);
    return chosen.answer;
  }
}

class KeyedChannel<T> {
  readonly #queues = new Map<string, T[]>();
  readonly #order: DrawnOrder;
  readonly #keyOf: (item: T) => number;
  readonly #weightOf: (item: T) => number;
  isClosed = false;

  constructor(order: DrawnOrder, keyOf: (item: T) => number, weightOf: (item: T) => number) {
    this.#order = order;
    this.#keyOf = keyOf;
    this.#weightOf = weightOf;
  }

  get sink(): Sink<T> {
    const put = async (...items: T[]) => {
      for (const item of items) this.#queue(`${this.#keyOf(item)}`).push(item);
    };
    return { name: "drawn", put } as unknown as Sink<T>;
  }

  get source(): Source<T> {
    const take = ({ key = "", items = Number.POSITIVE_INFINITY, weight = Number.POSITIVE_INFINITY }: BatchOptions) =>
      new Promise<T[] | undefined>((resolve) => {
        const isReady = () => this.#queue(key).length > 0 || this.isClosed;
        this.#order.wait({ isReady, answer: () => resolve(this.#fill(this.#queue(key), items, weight)) });
      });
    return { name: "drawn", take } as unknown as Source<T>;
  }

  #queue(key: string): T[] {
    const queue = this.#queues.get(key) ?? [];
    this.#queues.set(key, queue);
    return queue;
  }

  #fill(queue: T[], items: number, weight: number): T[] | undefined {
    let [count, sum] = [0, 0];
    for (const item of queue.slice(0, items)) {
      sum += this.#weightOf(item);
      if (count > 0 && sum > weight) break;
      count += 1;
    }
    return count === 0 ? undefined : queue.splice(0, count);
  }
}

/** All calls of `simulate` and `act`, one after the other. */
export async function play(cycle: Cycle, onActed: (environments: number) => void = () => {}): Promise<Played> {
  const { simulators, policies, simulator, model, maxBatch, horizon, calls, order: seed } = cycle;
  const group = new Group(simulators);
  const simulating = Array.from(
    { length: simulators },
    (_, rank) => new SimulatorWorker(contextOf(simulator, "simulator", { rank, group })),
  );
  const acting = Array.from({ length: policies }, (_, rank) => {
    const context = contextOf({ model, maxBatch }, "control-rollout", { rank, group: new Group(policies) });
    return new CountingPolicy(context, onActed);
  });
  for (const worker of [...simulating, ...acting]) await worker.setup();
  const played: Played = { trajectories: [], reports: [] };
  try {
    for (let call = 0; call < calls; call++) {
      const order = new DrawnOrder(`${seed}/${call}`);
      const observations = new KeyedChannel<Observation>(
        order,
        (seen) => seen.policy,
        (seen) => seen.rewards.length,
      );
      const actions = new KeyedChannel<Action>(
        order,
        (action) => action.simulator,
        () => 1,
      );
      const made: Trajectory[] = [];
      const trajectories = { put: async (...items: Trajectory[]) => void made.push(...items) };
      const ending = Promise.all(
        simulating.map((worker) => worker.simulate(actions.source, observations.sink, { horizon, policies })),
      ).finally(() => {
        observations.isClosed = true;
      });
      const answered = Promise.all(
        acting.map((worker) =>
          worker.act(observations.source, actions.sink, trajectories as unknown as Sink<Trajectory>),
        ),
      );
      let isOver = false;
      const over = Promise.all([ending, answered]).finally(() => {
        isOver = true;
      });
      over.catch(() => {}); // it is awaited below
      while (!isOver) {
        await new Promise((resolve) => setImmediate(resolve));
        order.next()?.();
      }
      played.reports.push((await over)[0]);
      played.trajectories.push(made.sort((a, b) => a.environment - b.environment));
    }
  } finally {
    for (const worker of simulating) await worker.teardown();
  }
  return played;
}

/** Tells how many rows its engine is asked for. */
export class CountingPolicy extends ControlRolloutWorker {
  readonly #onActed: (rows: number) => void;

  constructor(context: ConstructorParameters<typeof ControlRolloutWorker>[0], onActed: (rows: number) => void) {
    super(context);
    this.#onActed = onActed;
  }

  override async setup(): Promise<void> {
    await super.setup();
    const act = this.engine.act.bind(this.engine);
    this.engine.act = (observations, rows, options) => {
      this.#onActed(rows);
      return act(observations, rows, options);
    };
  }
}
