/** Measures Treadle on this machine, each figure next to the same work done another way in the same run. */
import { benchDecisions } from "./actions/decisions.ts";
import { benchHosts } from "./actions/hosts.ts";
import { benchOverhead } from "./actions/overhead.ts";
import { benchPolicies } from "./actions/policies.ts";
import { benchPytest, benchReplay } from "./actions/replay.ts";
import { benchSandboxes } from "./actions/sandboxes.ts";
import { benchTurns } from "./actions/turns.ts";
import { benchDashboard } from "./dashboard.ts";
import { benchEmbedded } from "./embedded.ts";
import { benchMultiplex } from "./multiplex.ts";
import { benchMultiplexer } from "./multiplexer.ts";
import { benchPlanner } from "./planner.ts";
import { benchPoolOfOne } from "./pool-of-one.ts";
import { benchRolloutOrder } from "./rollout-order.ts";
import { benchRolloutLive } from "./rollout-router/rollout-live.ts";
import { benchRolloutRouter } from "./rollout-router/rollout-router.ts";
import { benchRolloutStream } from "./rollout-stream.ts";
import { benchRolloutTail } from "./rollout-tail.ts";
import type { BenchRow } from "./row.ts";
import { benchBroadcast } from "./runtime/broadcast.ts";
import { benchBulk } from "./runtime/bulk.ts";
import { benchCheckpoint } from "./runtime/checkpoint.ts";
import { benchCode } from "./runtime/code.ts";
import { benchGroupCall } from "./runtime/group-call.ts";
import { benchLock } from "./runtime/lock.ts";
import { benchNetwork } from "./runtime/network.ts";
import { benchScale } from "./runtime/scale.ts";
import { benchSmallItems } from "./runtime/small-items.ts";
import { benchStart } from "./runtime/start.ts";
import { benchStepShare } from "./runtime/step-share.ts";
import { benchCore, benchSimulation } from "./simulation.ts";
import { benchEngineDeaths } from "./torch/engine-deaths.ts";
import { benchTorch } from "./torch/torch.ts";
import { benchTrajectories } from "./trajectories.ts";
import { benchTransport } from "./transport/transport.ts";
import { benchWeights } from "./weights.ts";

export type { BenchRow } from "./row.ts";

/** By the name that `treadle bench --only` takes; rows come as they are measured. */
export const measurements: Readonly<
  Record<string, () => AsyncIterable<BenchRow> | Iterable<BenchRow> | Promise<BenchRow[]>>
> = {
  transport: () => benchTransport(),
  "group-call": benchGroupCall,
  "small-items": benchSmallItems,
  bulk: benchBulk,
  broadcast: benchBroadcast,
  checkpoint: benchCheckpoint,
  code: benchCode,
  lock: benchLock,
  network: benchNetwork,
  scale: benchScale,
  start: benchStart,
  "step-share": benchStepShare,
  dashboard: benchDashboard,
  embedded: benchEmbedded,
  weights: benchWeights,
  "engine-deaths": benchEngineDeaths,
  torch: benchTorch,
  "rollout-order": () => benchRolloutOrder(),
  "rollout-live": benchRolloutLive,
  "rollout-router": benchRolloutRouter,
  "rollout-stream": benchRolloutStream,
  "rollout-tail": benchRolloutTail,
  planner: benchPlanner,
  "actions-decisions": async () => [...benchDecisions(), ...(await benchTurns())],
  actions: async () => [...benchPolicies(), ...(await benchSandboxes())],
  "actions-overhead": benchOverhead,
  "actions-hosts": benchHosts,
  "actions-replay": () => benchReplay(),
  "actions-pytest": benchPytest,
  core: benchCore,
  simulation: benchSimulation,
  trajectories: benchTrajectories,
  multiplexer: benchMultiplexer,
  multiplex: benchMultiplex,
  "pool-of-one": benchPoolOfOne,
};
