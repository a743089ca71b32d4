/** The state machines of a run. Nothing here reaches a process, a socket, a timer or a file: inputs in, effects out. */
export type { ItemList, ItemView, PutItem } from "./channel/channel-messages.ts";
export { runnerName } from "./channel/channel-messages.ts";
export type { PayloadEffect } from "./channel/kept-payloads.ts";
export {
  type PickFunction,
  type PickItem,
  type PickTake,
  type PolicyName,
  pickFailure,
  type UserPolicy,
} from "./channel/pick-policy.ts";
export { LendState } from "./device-lock/lend-state.ts";
export type { LeaseEffect, LeaseInput } from "./device-lock/lock-messages.ts";
export { canKeepBounds } from "./device-pool/bounds.ts";
export { DevicePoolState } from "./device-pool/device-pool-state.ts";
export { leaseInput, leaseRequest } from "./device-pool/lease-messages.ts";
export { PoolHistory } from "./device-pool/pool-history.ts";
export type { PoolEffect, PoolInput, PoolLimits } from "./device-pool/pool-messages.ts";
export type { SharingPolicy } from "./device-pool/sharing-policy.ts";
export { answerPatienceMs } from "./membership/awaited-nodes.ts";
export { type InquiryVerdict, type Look, NodeInquiry } from "./membership/node-inquiry.ts";
export {
  afterSilence,
  type MembershipInput,
  type NodeAnswer,
  NodeMembership,
} from "./membership/node-membership.ts";
export { kindOf, relocate } from "./ranks/relocate.ts";
export type { SupervisionLimits } from "./ranks/supervisor-state.ts";
export { digestOf, digestOfRefusal, tied } from "./recording/effects-digest.ts";
export { recordInput } from "./recording/recorded-input.ts";
export { Replay } from "./recording/replay.ts";
export { streamOf } from "./runner/channel-book.ts";
export { inTurn } from "./runner/in-turn.ts";
export { type RollBack, RollBacks } from "./runner/roll-backs.ts";
export type {
  Answer,
  ChannelEnd,
  ComponentTraits,
  Incarnation,
  RunnerEffect,
  RunnerInput,
} from "./runner/runner-messages.ts";
export { type RunnerOptions, RunnerState } from "./runner/runner-state.ts";
export { SavePace } from "./steps/save-pace.ts";
