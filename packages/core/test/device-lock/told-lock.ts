/** A lock that is told what workers ask for, and says what it does as lines. */
import { DeviceLockState } from "../../src/device-lock/device-lock-state.ts";
import type { CallInput, LockEffect } from "../../src/device-lock/lock-messages.ts";

/** Workers as `name: [devices, resident bytes]`; every device has 100 bytes. */
export function lockOf(
  workers: Record<string, [string[], number]>,
  options: { timeoutMs?: number; maxBypass?: number } = {},
): DeviceLockState {
  const names = new Set(Object.values(workers).flatMap(([devices]) => devices));
  const devices = [...names].map((device) => ({ device, capacityBytes: 100 }));
  const lock = new DeviceLockState({ devices, ...options });
  for (const [worker, [set, residentBytes]] of Object.entries(workers))
    lock.addWorker({ worker, devices: set, residentBytes });
  return lock;
}

export const streams = (...names: string[]) => names.map((channel) => ({ channel, stream: 0 }));

/** Opens a call that has the name of its worker. */
export function open(lock: DeviceLockState, worker: string, sequence: number, more: Partial<CallInput> = {}): void {
  lock.openCall({ call: worker, worker, sequence, consumes: [], produces: [], ...more });
}

export function lines(effects: readonly LockEffect[]): string[] {
  return effects.map((effect) => {
    if (effect.type === "grant") return `grant ${effect.call} ${effect.token}`;
    if (effect.type === "refuse") return `refuse ${effect.call}: ${effect.error.code}`;
    if (effect.type === "stale") return `stale ${effect.token}`;
    if (effect.type === "ask-lease") return `ask-lease ${effect.devices.join(" ")}`;
    if ("component" in effect || effect.type === "release-lease") return `${effect.type} ${effect.token}`;
    return [effect.type, effect.worker, ...(effect.tags ?? [])].join(" ");
  });
}

export const acquire = (lock: DeviceLockState, call: string, nowMs = 0) =>
  lines(lock.acquire({ request: call, call, nowMs }));

/** Acquires and answers every offload and onload at once; the trace of effects. */
export function settle(lock: DeviceLockState, effects: readonly LockEffect[]): string[] {
  const trace: string[] = [];
  const queue = [...effects];
  for (let effect = queue.shift(); effect; effect = queue.shift()) {
    trace.push(...lines([effect]));
    if (effect.type === "offload") queue.push(...lock.offloaded({ worker: effect.worker }));
    if (effect.type === "onload") queue.push(...lock.onloaded({ worker: effect.worker }));
  }
  return trace;
}
