import { type ActorCriticConfig, ActorCriticEngine } from "@treadle/engines";
import { hashString } from "@treadle/learning";
import type { Sink, Source, WorkerGroup } from "@treadle/runtime";
import type { ControlActorWorker } from "../actor/control-actor-worker.ts";
import { EngineWorker } from "../engine-worker.ts";
import type { Action, Observation, Trajectory } from "../simulator/items.ts";

/** Acts in a simulator and collects what happened. */
export class ControlRolloutWorker extends EngineWorker<{ model: ActorCriticConfig }, ActorCriticEngine> {
  static override readonly module: string = import.meta.url;
  static override readonly replays = ["pullWeights"];

  override async setup(): Promise<void> {
    this.engine = await ActorCriticEngine.create(this.config.model);
  }

  async pullWeights(actor: WorkerGroup<ControlActorWorker>): Promise<void> {
    await using _ = await this.devices.lock();
    const weights = await actor
      .onRanks(this.rank % actor.size)
      .weights(this.engine.policyVersion)
      .first();
    if (weights) await this.engine.loadWeights(weights);
  }

  /** Answers `horizon` observations with actions, values one more, and puts one trajectory for each environment. */
  async act(
    observations: Source<Observation>,
    actions: Sink<Action>,
    trajectories: Sink<Trajectory>,
    horizon: number,
  ): Promise<void> {
    await using _ = await this.devices.lock();
    const { observationSize, actionSize } = this.config.model;
    const made: Trajectory[] = [];
    for (let time = 0; time <= horizon; time++) {
      const [seen] = (await observations.take({ items: 1 })) ?? [];
      if (!seen) return;
      const rows = seen.rewards.length;
      const seed = hashString(`${this.seed}/${this.rank}/${this.engine.policyVersion}/${time}`);
      const acted = await this.engine.act(seen.observations, rows, { seed });
      if (time < horizon) await actions.put({ actions: acted.actions });
      const final = seen.truncated.some((flag) => flag === 1)
        ? (await this.engine.act(seen.finalObservations, rows, { greedy: true })).values
        : undefined;
      for (let row = 0; row < rows; row++) {
        made[row] ??= emptyTrajectory(this.engine.policyVersion, horizon, observationSize, actionSize);
        const trajectory = made[row] as Trajectory;
        if (time > 0) {
          trajectory.rewards[time - 1] = seen.rewards[row] ?? 0;
          trajectory.terminated[time - 1] = seen.terminated[row] ?? 0;
          trajectory.truncated[time - 1] = seen.truncated[row] ?? 0;
          trajectory.finalValues[time - 1] = final?.[row] ?? 0;
        }
        if (time === horizon) {
          made[row] = { ...trajectory, lastValue: acted.values[row] ?? 0 };
          continue;
        }
        const from = row * observationSize;
        trajectory.observations.set(seen.observations.subarray(from, from + observationSize), time * observationSize);
        const chosen = acted.actions.subarray(row * actionSize, (row + 1) * actionSize);
        trajectory.actions.set(chosen, time * actionSize);
        trajectory.logprobs[time] = acted.logprobs[row] ?? 0;
        trajectory.values[time] = acted.values[row] ?? 0;
      }
    }
    await trajectories.put(...made);
  }
}

function emptyTrajectory(
  policyVersion: number,
  steps: number,
  observationSize: number,
  actionSize: number,
): Trajectory {
  return {
    policyVersion,
    observations: new Float32Array(steps * observationSize),
    actions: new Float32Array(steps * actionSize),
    logprobs: new Float32Array(steps),
    values: new Float32Array(steps),
    rewards: new Float32Array(steps),
    terminated: new Uint8Array(steps),
    truncated: new Uint8Array(steps),
    finalValues: new Float32Array(steps),
    lastValue: 0,
  };
}
