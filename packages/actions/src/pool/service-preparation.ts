import { type Clock, TreadleError } from "@treadle/contracts";
import { systemClock } from "@treadle/transport";
import type { GpuManager } from "../managers/gpu.ts";
import type { Grant, ServiceInstance } from "../managers/manager.ts";
import type { ActionContext } from "./action-record.ts";

/** What starts, stops and measures services on devices: one process a service, since memory comes back only with its end. */
export interface ServiceHost {
  evict(instance: ServiceInstance): Promise<void>;
  restore(instance: ServiceInstance, signal: AbortSignal): Promise<void>;
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
 * free (GP3), then restores. Throws `device.memory-not-freed` when it never is.
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
    await Promise.all(devices.evict.map((instance) => host.evict(instance)));
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
    try {
      await host.restore(instance, context.signal);
    } catch (error) {
      manager.lost(instance);
      throw error;
    }
  };
}
