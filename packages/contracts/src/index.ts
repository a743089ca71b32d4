export {
  type Disposition,
  type ErrorCode,
  type ErrorOrigin,
  type ErrorRecord,
  errorCatalogue,
  fromErrorRecord,
  rootCause,
  TreadleError,
  toErrorRecord,
} from "./errors.ts";
export { PlacementRow, RunEvent, RunSummary, UtilisationShares } from "./events.ts";
export {
  type Completion,
  Episode,
  EpisodeGroup,
  FinishReason,
  type LossMetrics,
  type LossSpec,
  Prompt,
  Sampling,
  type TrainBatch,
  type Weights,
} from "./learning.ts";
export { DeviceSpec, FlowEdge, Granularity, PlacementMode, Plan, RankPlacement } from "./plan.ts";
export type { Clock, Link, Peer, PeerName, RequestContext } from "./ports.ts";
