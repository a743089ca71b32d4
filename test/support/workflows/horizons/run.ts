/** Simulators and policies in an environment that shows what it was told, so that a trajectory proves whose actions it has. */
import { ActorCriticConfig } from "@treadle/engines";
import { parseConfig } from "@treadle/learning";
import { type Source, Worker, workflow } from "@treadle/runtime";
import {
  Action,
  ControlRolloutWorker,
  type EnvironmentPlugin,
  type EnvironmentRegistry,
  Observation,
  SimulatorWorker,
  Trajectory,
} from "@treadle/workers";
import { z } from "zod";

const EchoConfig = z.strictObject({ name: z.literal("echo"), stepMs: z.int().nonnegative() });
const episodeSteps = 7;
const model = ActorCriticConfig.parse({ observationSize: 3, actionSize: 1, hidden: [4] });

/** Observed are the environment's number, the age of its episode and its last action, which is also the reward. */
const echo: EnvironmentPlugin = {
  name: "echo",
  create(config, path) {
    const { stepMs } = parseConfig(EchoConfig, config, path);
    return async ({ numEnvironments, firstEnvironment }) => {
      const ages = new Int32Array(numEnvironments);
      const observe = (actions: Float32Array) =>
        Float32Array.from({ length: 3 * numEnvironments }, (_, i) => {
          const row = Math.floor(i / 3);
          return [firstEnvironment + row, ages[row] as number, ages[row] === 0 ? 0 : (actions[row] as number)][
            i % 3
          ] as number;
        });
      return {
        observationSize: 3,
        actionSize: 1,
        numEnvironments,
        reset: () => observe(new Float32Array(numEnvironments)),
        step(actions) {
          Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, stepMs);
          for (let row = 0; row < numEnvironments; row++) ages[row] = (ages[row] as number) + 1;
          const finalObservations = observe(actions);
          const truncated = Uint8Array.from(ages, (age) => (age === episodeSteps ? 1 : 0));
          for (let row = 0; row < numEnvironments; row++) if (truncated[row]) ages[row] = 0;
          const observations = observe(actions);
          const terminated = new Uint8Array(numEnvironments);
          return { observations, finalObservations, rewards: actions.slice(), terminated, truncated };
        },
        [Symbol.dispose]() {},
      };
    };
  },
};

export class EchoSimulatorWorker extends SimulatorWorker {
  static override readonly module: string = import.meta.url;
  protected override environments(): EnvironmentRegistry {
    return super.environments().with(echo);
  }
}

export class CheckWorker extends Worker<{ numEnvironments: number }> {
  /** How many trajectories there are of how many environments, their steps, and steps that do not fit the one before. */
  async check(trajectories: Source<Trajectory>): Promise<Record<string, number>> {
    await using _ = await this.devices.lock();
    const environments = new Set<number>();
    const counts = { trajectories: 0, steps: 0, breaks: 0 };
    for await (const batch of trajectories.batches({ acknowledge: "call" })) {
      for (const { environment, observations, actions, rewards, truncated } of batch) {
        environments.add(environment);
        counts.trajectories += 1;
        counts.steps += rewards.length;
        for (let time = 0; time < rewards.length; time++) {
          const [number, age, last] = observations.subarray(3 * time, 3 * time + 3);
          const isFirst = time === 0 || truncated[time - 1] === 1;
          const fits =
            number === environment &&
            rewards[time] === actions[time] &&
            truncated[time] === (age === episodeSteps - 1 ? 1 : 0) &&
            (isFirst || (last === actions[time - 1] && age === (observations[3 * time - 2] as number) + 1));
          if (!fits) counts.breaks += 1;
        }
      }
    }
    return { ...counts, environments: environments.size };
  }
}

const Config = z.strictObject({
  ranks: z.strictObject({ simulator: z.int(), rollout: z.int() }),
  numEnvironments: z.int(),
  pipelineStages: z.int(),
  maxBatch: z.int(),
  horizon: z.int(),
  /** episodes of the policy without exploration after each horizon; weights never change, so all are alike */
  plays: z.int(),
});

export default workflow(Config, async ({ cluster, config, steps, report }) => {
  const { numEnvironments, pipelineStages, maxBatch, horizon, ranks, plays } = config;
  const simulator = cluster.launch(
    EchoSimulatorWorker,
    { environment: { name: "echo", stepMs: 4 }, numEnvironments, pipelineStages },
    { ranks: { fixed: ranks.simulator } },
  );
  const rollout = cluster.launch(ControlRolloutWorker, { model, maxBatch }, { ranks: { fixed: ranks.rollout } });
  const check = cluster.launch(CheckWorker, { numEnvironments }, { ranks: { fixed: 1 } });
  const observations = cluster.channel("observations", Observation, { key: "policy", weight: "rewards" });
  const actions = cluster.channel("actions", Action, { key: "simulator" });
  const trajectories = cluster.channel("trajectories", Trajectory);
  const played = cluster.channel("played-observations", Observation, { key: "policy", weight: "rewards" });
  const playing = cluster.channel("played-actions", Action, { key: "simulator" });
  for await (const { index } of steps((step) => [{ id: `${step}` }])) {
    simulator.simulate(actions.source, observations.sink, { horizon, policies: rollout.size });
    rollout.act(observations.source, actions.sink, trajectories.sink);
    report(check.check(trajectories.source));
    for (let play = 0; play < plays; play++) {
      const recorded = simulator.onRanks(0).record(playing.source, played.sink, index);
      await rollout.onRanks(0).play(played.source, playing.sink);
      report({ [`return${play}`]: (await recorded.first()).return });
    }
  }
});
