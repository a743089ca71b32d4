/** What a process says of itself besides its spans, as counter records of its tracer. */
import type { Tracer } from "./tracer.ts";

/** Bytes over the links of a process since its start; shared memory is not among them. */
export type TrafficCounters = { readonly sentBytes: number; readonly receivedBytes: number };

/** Names of the records. */
export const processCounters = { process: "process", links: "links" } as const;

/** Totals since the process began, and its resident memory now. */
export function recordProcessCounters(tracer: Tracer, { sentBytes, receivedBytes }: TrafficCounters): void {
  const { user, system } = process.cpuUsage();
  const residentBytes = process.memoryUsage.rss();
  tracer.counter(processCounters.process, { cpuSeconds: (user + system) / 1e6, residentBytes });
  tracer.counter(processCounters.links, { sentBytes, receivedBytes });
}
