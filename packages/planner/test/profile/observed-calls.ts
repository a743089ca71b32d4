import type { ObservedCall } from "@treadle/contracts";

type Flow = { readonly channel: string; readonly items: number };

/** A call as a worker would report it, with what a test says of it. */
export function observed(
  call: Partial<ObservedCall> & Pick<ObservedCall, "component">,
  flow: { takes?: readonly Flow[]; puts?: readonly Flow[]; chunks?: number } = {},
): ObservedCall {
  const { takes = [], puts = [], chunks = 1 } = flow;
  const busyMs = call.busyMs ?? 100;
  return {
    method: "work",
    rank: 0,
    sequence: 0,
    step: 1,
    durationMs: busyMs,
    busyMs,
    lockWaitMs: 0,
    onloadMs: 0,
    offloadMs: 0,
    cpuMs: 0,
    memoryBytes: 0,
    channels: [
      ...takes.map((each) => ({ ...each, role: "source" as const, bytes: each.items, times: chunks, waitMs: 0 })),
      ...puts.map((each) => ({ ...each, role: "sink" as const, bytes: each.items, times: chunks, waitMs: 0 })),
    ],
    batches: takes.map(({ channel, items }) => ({ channel, items: items / chunks, times: chunks, busyMs })),
    peers: [],
    ...call,
  };
}
