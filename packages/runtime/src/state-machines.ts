/**
 * The state machines of the runtime, for whoever drives them on a clock of its own. Nothing here reaches a process, a
 * socket, a timer or `transport`.
 */
export { type ChannelEffect, type ItemView, runnerName } from "./channel/channel-messages.ts";
export { ChannelState } from "./channel/channel-state.ts";
export { StreamShares } from "./channel/stream-shares.ts";
export { describeStandstill } from "./cluster/standstill.ts";
export { DeviceLockState } from "./device-lock/device-lock-state.ts";
export type { LockEffect } from "./device-lock/lock-messages.ts";
export { StepOrder } from "./run/step-order.ts";
