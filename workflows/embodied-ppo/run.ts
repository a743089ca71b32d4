/** PPO in a physics simulator: simulator ⇄ policy for a horizon of steps, then training. No device, no mode is named. */
import { workflow } from "treadle";
import {
  Action,
  ControlActorConfig,
  ControlActorWorker,
  ControlRolloutConfig,
  ControlRolloutWorker,
  Observation,
  SimulatorConfig,
  SimulatorWorker,
  Trajectory,
} from "treadle/workers";
import { z } from "zod";

const Config = z.strictObject({
  simulator: SimulatorConfig,
  rollout: ControlRolloutConfig.omit({ model: true }).optional(),
  horizon: z.int().positive(),
  actor: ControlActorConfig.omit({ maxStaleness: true }),
  ranks: z
    .strictObject({ simulator: z.int().positive(), rollout: z.int().positive(), actor: z.int().positive() })
    .describe("most processes of each component; environments are split over simulators, and those over policies"),
  recordEvery: z
    .int()
    .positive()
    .describe(
      "steps between two recorded episodes of the policy without exploration; the first is before training, the last after",
    ),
});

export default workflow(Config, async ({ cluster, config, steps, report, once }) => {
  const { horizon, ranks } = config;
  const simulator = cluster.launch(SimulatorWorker, config.simulator, { ranks: { max: ranks.simulator } });
  const rollout = cluster.launch(
    ControlRolloutWorker,
    { ...config.rollout, model: config.actor.model },
    { ranks: { max: ranks.rollout } },
  );
  const actor = cluster.launch(
    ControlActorWorker,
    { ...config.actor, maxStaleness: config.flow.maxStaleness },
    { ranks: { max: ranks.actor } },
  );
  const observations = cluster.channel("observations", Observation, { key: "policy", weight: "rewards" });
  const actions = cluster.channel("actions", Action, { key: "simulator" });
  const trajectories = cluster.channel("trajectories", Trajectory);
  const played = cluster.channel("played-observations", Observation, { key: "policy", weight: "rewards" });
  const playing = cluster.channel("played-actions", Action, { key: "simulator" });

  const greedyReturn = async (step: number): Promise<number> => {
    rollout.pullWeights(actor);
    const recorded = simulator.onRanks(0).record(playing.source, played.sink, step);
    rollout.onRanks(0).play(played.source, playing.sink);
    return (await recorded.first()).return;
  };
  await once("baseline evaluation", async () => report({ greedyReturn: await greedyReturn(0) }));

  for await (const { index, isLast } of steps((step) => [{ id: `${step}` }])) {
    rollout.pullWeights(actor);
    report(simulator.simulate(actions.source, observations.sink, { horizon, policies: rollout.size }));
    rollout.act(observations.source, actions.sink, trajectories.sink);
    const trained = actor.train(trajectories.source);
    report(trained);
    if (isLast || index % config.recordEvery === 0) {
      await trained;
      report({ greedyReturn: await greedyReturn(index) });
    }
  }
});
