import { TreadleError } from "@treadle/contracts";
import { type ActorCriticConfig, ActorCriticEngine } from "@treadle/engines";
import { hashString } from "@treadle/learning";
import type { Sink, Source, WorkerGroup } from "@treadle/runtime";
import type { ControlActorWorker } from "../actor/control-actor-worker.ts";
import { EngineWorker } from "../engine-worker.ts";
import { requireObservation } from "../simulator/exchange.ts";
import type { Action, Observation, Trajectory } from "../simulator/items.ts";
import { pullWeights } from "../weights.ts";
import { Horizon } from "./horizon.ts";

/** Acts in simulators and collects what happened. */
export class ControlRolloutWorker extends EngineWorker<{ model: ActorCriticConfig }, ActorCriticEngine> {
  static override readonly module: string = import.meta.url;
  static override readonly replays = ["pullWeights"];

  override async setup(): Promise<void> {
    this.engine = await ActorCriticEngine.create(this.config.model);
  }

  async pullWeights(actor: WorkerGroup<ControlActorWorker>): Promise<void> {
    await pullWeights(this.engine, actor, this);
  }

  /**
   * Answers the observations that name this rank, each with actions, until the simulators that put them have ended, and
   * puts one trajectory for each environment when its horizon is reached, together with the answer that says so (SE2).
   * What a restarted rank knows nothing of begins again.
   */
  async act(observations: Source<Observation>, actions: Sink<Action>, trajectories: Sink<Trajectory>): Promise<void> {
    await using _ = await this.devices.lock();
    const horizons = new Map<number, Horizon>();
    const done = new Set<number>();
    for await (const seen of this.#observations(observations)) {
      const { simulator, time } = seen;
      if (time === 0 && !done.has(simulator)) {
        horizons.set(simulator, new Horizon(seen, this.engine.policyVersion, this.config.model));
      }
      const horizon = horizons.get(simulator);
      // A simulator that died between its last answer and its end has nothing left to do.
      if (done.has(simulator)) await this.#answer(actions, seen, "done");
      else if (!horizon?.expects(seen)) await this.#answer(actions, seen, "restart");
      else if (await this.#take(seen, horizon, actions, trajectories)) done.add(simulator);
    }
  }

  /** Answers every observation with the most likely action, and keeps nothing. */
  async play(observations: Source<Observation>, actions: Sink<Action>): Promise<void> {
    await using _ = await this.devices.lock();
    for await (const seen of this.#observations(observations)) {
      const acted = await this.#act(seen.observations, seen.rewards.length, { greedy: true });
      await this.#answer(actions, seen, "act", acted.actions);
    }
  }

  async #act(...asked: Parameters<ActorCriticEngine["act"]>): ReturnType<ActorCriticEngine["act"]> {
    using _ = this.timer("act");
    return await this.engine.act(...asked);
  }

  /** True when the horizon is reached. */
  async #take(seen: Observation, horizon: Horizon, actions: Sink<Action>, trajectories: Sink<Trajectory>) {
    const rows = seen.rewards.length;
    const { policyVersion } = this.engine;
    const seed = hashString(`${this.seed}/${seen.simulator}/${policyVersion}/${seen.time}`);
    const acted = await this.#act(seen.observations, rows, { seed });
    const isLast = seen.time === seen.horizon;
    if (!isLast) await this.#answer(actions, seen, "act", acted.actions);
    const final = seen.truncated.includes(1)
      ? await this.#act(seen.finalObservations, rows, { greedy: true })
      : undefined;
    horizon.observe(seen, final?.values);
    if (!isLast) {
      horizon.act(seen, acted);
      return false;
    }
    await trajectories.put(...horizon.finish(acted.values));
    await this.#answer(actions, seen, "done");
    return true;
  }

  async #answer(
    actions: Sink<Action>,
    seen: Observation,
    kind: Action["kind"],
    values: Float32Array = new Float32Array(),
  ) {
    const { simulator, attempt, time } = seen;
    const { policyVersion } = this.engine;
    await actions.put({ simulator, attempt, time, kind, policyVersion, actions: values });
  }

  async *#observations(source: Source<Observation>): AsyncGenerator<Observation> {
    const { observationSize } = this.config.model;
    for (;;) {
      const [seen] = (await source.take({ items: 1, key: `${this.rank}` })) ?? [];
      if (!seen) return;
      const width = seen.observations.length / seen.rewards.length;
      if (width !== observationSize) {
        throw new TreadleError(
          "config.invalid",
          `the environment shows '${width}' numbers; the policy takes ${observationSize}: set 'actor.model.observationSize'`,
        );
      }
      requireObservation(seen);
      yield seen;
    }
  }
}
