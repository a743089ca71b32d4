import { type Clock, TreadleError } from "@treadle/contracts";
import { systemClock } from "@treadle/transport";
import type { GpuManager, RestoreWay } from "../managers/gpu.ts";
import type { Grant, ServiceInstance } from "../managers/manager.ts";
import type { ActionContext } from "./action-record.ts";

/** What starts, stops and measures services on devices: one process a service, since memory comes back only with its end. */
export interface ServiceHost {
  /** `asleep`: it keeps a copy elsewhere, from which it can be woken */
  evict(instance: ServiceInstance): Promise<"asleep" | "ended">;
  restore(instance: ServiceInstance, signal: AbortSignal): Promise<RestoreWay>;
  /** free bytes of every device of the interval, measured */
  freeBytes(grant: Grant): Promise<readonly number[]>;
}

export type ServicePreparationOptions = {
  /** how long an evicted service may take to give its memory back */
  readonly timeoutMs?: number | undefined;
  readonly pollMs?: number | undefined;
};

/**
 * Evict-on-execution (ARL-Tangram §5.3) as a `prepare` of the pool: evicts, waits until the memory was measured to be
 * free (GP3), then restores, and tells the manager how long that took (GP5). Throws `device.memory-not-freed` when it never is.
 */
export function servicePreparation(
  manager: GpuManager,
  host: ServiceHost,
  clock: Clock = systemClock,
  { timeoutMs = 10_000, pollMs = 20 }: ServicePreparationOptions = {},
): (grant: Grant, context: ActionContext) => Promise<void> {
  return async (grant, context) => {
    const { devices } = grant;
    if (grant.resource !== manager.resource || devices === undefined || !devices.restore) return;
    const evict = async (instance: ServiceInstance): Promise<void> =>
      manager.evicted(instance, (await host.evict(instance)) === "asleep");
    await Promise.all(devices.evict.map(evict));
    const startedMs = clock.now();
    let free = await host.freeBytes(grant);
    while (!manager.verifyFreed(context.id, free)) {
      context.signal.throwIfAborted();
      if (clock.now() - startedMs >= timeoutMs)
        throw new TreadleError(
          "device.memory-not-freed",
          `${devices.neededBytes} bytes were not free on node ${devices.chunk.node}, devices ${devices.chunk.start}-${devices.chunk.start + devices.chunk.size - 1} within ${timeoutMs} ms, but '${free.join(", ")}'; end the evicted services' processes`,
        );
      await new Promise<void>((resolve) => clock.after(pollMs, resolve));
      free = await host.freeBytes(grant);
    }
    const instance = manager.instanceOf(context.id);
    if (instance === undefined) return;
    const restoreMs = clock.now();
    try {
      const way = await host.restore(instance, context.signal);
      manager.restored(instance, way, (clock.now() - restoreMs) / 1000);
    } catch (error) {
      manager.lost(instance);
      throw error;
    }
  };
}
