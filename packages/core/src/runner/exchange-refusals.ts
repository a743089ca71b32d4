/** What an exchange tells workers that ask what it cannot do. */
import { TreadleError } from "@treadle/contracts";

export const notHeld = (worker: string, channel: string, call: string): TreadleError =>
  new TreadleError(
    "call.cancelled",
    `'${worker}' committed items of '${channel}' that call '${call}' does not hold any more; an item is committed once, in the call that took it`,
  );

export const notASource = (worker: string, channel: string): TreadleError =>
  new TreadleError(
    "workflow.invalid",
    `'${worker}' takes from channel '${channel}', which was passed to it as a sink; pass '.source'`,
  );

export const notAGang = (worker: string, channel: string): TreadleError =>
  new TreadleError(
    "workflow.invalid",
    `'${worker}' takes from channel '${channel}' with 'gang', and its ranks start again one by one; say 'static restart = "group"' in its class, or take without`,
  );

export const notOpen = (worker: string, call: string): TreadleError =>
  new TreadleError(
    "lock.stale-token",
    `'${worker}' asked for its devices in call '${call}', which is not open there any more`,
  );

export const revoked = (worker: string, token: number): TreadleError =>
  new TreadleError(
    "lock.stale-token",
    `'${worker}' released its devices with token '${token}', which has been revoked`,
  );

export const wasClosed = (channel: string, call: string): TreadleError =>
  new TreadleError(
    "channel.closed",
    `channel '${channel}' was used by call '${call}', which has ended or was not given that channel; await every put within the method`,
  );
