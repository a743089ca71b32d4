/** PPO in a physics simulator: simulator ⇄ policy for a horizon of steps, then training. No device, no mode is named. */
import { workflow } from "@treadle/runtime";
import {
  Action,
  ControlActorConfig,
  ControlActorWorker,
  ControlRolloutWorker,
  Observation,
  SimulatorConfig,
  SimulatorWorker,
  Trajectory,
} from "@treadle/workers";
import { z } from "zod";

const Config = z.strictObject({
  simulator: SimulatorConfig,
  horizon: z.int().positive(),
  actor: ControlActorConfig,
});

export default workflow(Config, async ({ cluster, config, steps, report }) => {
  const { horizon } = config;
  // One policy process answers one simulator process: an action belongs to the environments that asked for it.
  const one = { ranks: { fixed: 1 } };
  const simulator = await cluster.launch(SimulatorWorker, config.simulator, one);
  const rollout = await cluster.launch(ControlRolloutWorker, { model: config.actor.model }, one);
  const actor = await cluster.launch(ControlActorWorker, config.actor, one);
  const observations = cluster.channel("observations", Observation);
  const actions = cluster.channel("actions", Action);
  const trajectories = cluster.channel("trajectories", Trajectory);

  for await (const _ of steps((step) => [{ id: `${step}` }])) {
    rollout.pullWeights(actor);
    const simulated = simulator.simulate(actions.source, observations.sink, horizon);
    rollout.act(observations.source, actions.sink, trajectories.sink, horizon);
    report(simulated);
    report(actor.train(trajectories.source));
  }
});
