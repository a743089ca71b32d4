import { TreadleError } from "@treadle/contracts";
import { type Actions, ActorCriticConfig, ActorCriticEngine } from "@treadle/engines";
import { hashString } from "@treadle/learning";
import type { Sink, Source, WorkerGroup } from "@treadle/runtime";
import { z } from "zod";
import type { ControlActorWorker } from "../actor/control-actor-worker.ts";
import { EngineWorker } from "../engine-worker.ts";
import { requireObservation } from "../simulator/exchange.ts";
import type { Action, Observation, Trajectory } from "../simulator/items.ts";
import { pullWeights } from "../weights.ts";
import { Attempt, type Horizon } from "./horizon.ts";

export const ControlRolloutConfig = z.strictObject({
  model: ActorCriticConfig,
  /**
   * environments of which a call of the engine has observations at most; one stage of a simulator may have more. Default: all
   * that are there
   */
  maxBatch: z.int().positive().optional(),
});
export type ControlRolloutConfig = z.infer<typeof ControlRolloutConfig>;

/** Acts in simulators and collects what happened. */
export class ControlRolloutWorker extends EngineWorker<ControlRolloutConfig, ActorCriticEngine> {
  static override readonly module: string = import.meta.url;
  static override readonly replays = ["pullWeights"];

  override async setup(): Promise<void> {
    this.engine = await ActorCriticEngine.create(this.config.model);
  }

  async pullWeights(actor: WorkerGroup<ControlActorWorker>): Promise<void> {
    await pullWeights(this.engine, actor, this);
  }

  /**
   * Answers the observations that name this rank, each with actions, until the simulators that put them have ended. What
   * several simulators show is answered in one call of the engine, whatever there is when the rank has time; actions do not
   * depend on what is answered together. Puts one trajectory for each environment of a simulator when the horizon is reached
   * in all of its stages, together with the answer that says so (SE2, SE3). What a restarted rank knows nothing of begins again.
   */
  async act(observations: Source<Observation>, actions: Sink<Action>, trajectories: Sink<Trajectory>): Promise<void> {
    await using _ = await this.devices.lock();
    const attempts = new Map<number, Attempt>();
    const done = new Set<number>();
    for await (const batch of this.#batches(observations)) {
      // A simulator that died between its last answer and its end has nothing left to do.
      const answers = batch.filter(({ simulator }) => done.has(simulator)).map((seen) => this.#answer(seen, "done"));
      const due: Due[] = [];
      for (const seen of batch.filter(({ simulator }) => !done.has(simulator))) {
        const attempt = this.#attemptOf(seen, attempts);
        const horizon = attempt?.horizonOf(seen);
        if (attempt && horizon) due.push({ seen, attempt, horizon });
        else answers.push(this.#answer(seen, "restart"));
      }
      const acted = await this.#actOn(due.map(({ seen }) => seen));
      for (const [index, { seen, attempt, horizon }] of due.entries()) {
        if (done.has(seen.simulator)) {
          answers.push(this.#answer(seen, "done")); // an earlier attempt has just ended
          continue;
        }
        const { actions: chosen, finalValues, ...rest } = acted[index] as Acted;
        horizon.observe(seen, finalValues);
        if (seen.time < seen.horizon) {
          horizon.act(seen, { actions: chosen, ...rest });
          answers.push(this.#answer(seen, "act", chosen));
          continue;
        }
        const finished = attempt.finish(seen, rest.values);
        if (!finished) continue; // it waits for the other stages
        await trajectories.put(...finished);
        answers.push(this.#answer(seen, "done"));
        done.add(seen.simulator);
      }
      await actions.put(...answers);
    }
  }

  /** Answers every observation with the most likely action, and keeps nothing. */
  async play(observations: Source<Observation>, actions: Sink<Action>): Promise<void> {
    await using _ = await this.devices.lock();
    for await (const batch of this.#batches(observations)) {
      const acted = await this.#actOn(batch, { greedy: true });
      await actions.put(...batch.map((seen, index) => this.#answer(seen, "act", acted[index]?.actions)));
    }
  }

  /** The attempt that an observation is of, or begins. */
  #attemptOf(seen: Observation, attempts: Map<number, Attempt>): Attempt | undefined {
    const known = attempts.get(seen.simulator);
    if (known?.isOf(seen)) return known;
    if (seen.time > 0) return undefined;
    const begun = new Attempt(seen, this.engine.policyVersion, this.config.model);
    attempts.set(seen.simulator, begun);
    return begun;
  }

  /**
   * In one call of the engine, with a row more for each episode that was truncated: its final observation has a value. What
   * an action draws depends on its environment, the time and the policy's version, and on nothing beside it.
   */
  async #actOn(batch: readonly Observation[], options: { readonly greedy?: boolean } = {}): Promise<Acted[]> {
    if (batch.length === 0) return [];
    const { observationSize, actionSize } = this.config.model;
    const { policyVersion } = this.engine;
    const truncated = batch.map((seen) => [...seen.truncated.keys()].filter((row) => seen.truncated[row] === 1));
    const rows = batch.reduce((sum, { rewards }, i) => sum + rewards.length + (truncated[i] as number[]).length, 0);
    const observations = new Float32Array(rows * observationSize);
    const seeds = new Uint32Array(rows);
    let row = 0;
    for (const { firstEnvironment, rewards, time, ...seen } of batch) {
      observations.set(seen.observations, row * observationSize);
      for (let own = 0; own < rewards.length; own++)
        seeds[row++] = hashString(`${this.seed}/${firstEnvironment + own}/${policyVersion}/${time}`);
    }
    for (const [index, seen] of batch.entries()) {
      for (const own of truncated[index] as number[]) {
        const final = seen.finalObservations.subarray(own * observationSize, (own + 1) * observationSize);
        observations.set(final, row++ * observationSize);
      }
    }
    using _ = this.timer("act");
    const acted = await this.engine.act(observations, rows, { ...options, seeds });
    let [from, final] = [0, batch.reduce((sum, { rewards }) => sum + rewards.length, 0)];
    return batch.map(({ rewards }, index) => {
      const to = from + rewards.length;
      const part = {
        actions: acted.actions.slice(from * actionSize, to * actionSize),
        logprobs: acted.logprobs.subarray(from, to),
        values: acted.values.subarray(from, to),
        finalValues: new Map((truncated[index] as number[]).map((own) => [own, acted.values[final++] ?? 0])),
      };
      from = to;
      return part;
    });
  }

  #answer(
    { simulator, stage, attempt, time }: Observation,
    kind: Action["kind"],
    actions: Float32Array = new Float32Array(),
  ): Action {
    return { simulator, stage, attempt, time, kind, policyVersion: this.engine.policyVersion, actions };
  }

  /** What there is, one observation at least, within `maxBatch`. */
  async *#batches(source: Source<Observation>): AsyncGenerator<Observation[]> {
    const { maxBatch, model } = this.config;
    for (;;) {
      const batch = await source.take({ asTheyCome: true, key: `${this.rank}`, weight: maxBatch });
      if (!batch) return;
      for (const seen of batch) {
        const width = seen.observations.length / seen.rewards.length;
        if (width !== model.observationSize) {
          throw new TreadleError(
            "config.invalid",
            `the environment shows '${width}' numbers; the policy takes ${model.observationSize}: set 'actor.model.observationSize'`,
          );
        }
        requireObservation(seen);
      }
      this.#requireWithin(maxBatch, batch, source.name);
      yield batch;
    }
  }

  /** Only a channel that weighs observations by their environments can bound them. */
  #requireWithin(maxBatch: number | undefined, batch: readonly Observation[], channel: string): void {
    const rows = batch.reduce((sum, { rewards }) => sum + rewards.length, 0);
    if (maxBatch === undefined || batch.length === 1 || rows <= maxBatch) return;
    throw new TreadleError(
      "workflow.invalid",
      `'${channel}' gave observations of '${rows}' environments at once, at most ${maxBatch} are allowed (maxBatch): define that channel with weight 'rewards'`,
    );
  }
}

type Acted = Actions & { readonly finalValues: ReadonlyMap<number, number> };

type Due = { readonly seen: Observation; readonly attempt: Attempt; readonly horizon: Horizon };
