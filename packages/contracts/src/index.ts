export {
  CheckpointsConfig,
  ClusterConfig,
  FlowConfig,
  PlacementConfig,
  RuntimeConfig,
  SupervisionConfig,
} from "./config.ts";
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
export { FlowGraph } from "./flow-graph.ts";
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
  type ValueLoss,
  type Weights,
} from "./learning.ts";
export {
  CallReply,
  CallRequest,
  ChannelRef,
  Configuration,
  GiveUpMessage,
  GroupRef,
  ItemBlock,
  KeptItem,
  LockReply,
  LockRequest,
  OnloadReply,
  PackedItems,
  PutRequest,
  ReadyMessage,
  ResolveReply,
  ResolveRequest,
  SegmentsMessage,
  TakeReply,
  TakeRequest,
  UnlockRequest,
  WorkerBoot,
} from "./messages.ts";
export { DeviceSpec, FlowEdge, Granularity, PlacementMode, Plan, RankPlacement } from "./plan.ts";
export type { Cancellation, Clock, Link, Peer, PeerName, RequestContext, SendOptions } from "./ports.ts";
export { type Problem, readProblem, type SolveOptions, unknownMethod } from "./problem.ts";
export {
  CallObservation,
  ChannelObservation,
  ComponentProfile,
  type ObservedCall,
  Profile,
  ProfileSample,
  TimeFit,
} from "./profile.ts";
