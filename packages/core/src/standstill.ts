/** Who waits for whom, in words, when nothing moves (S3). Pure, over what channels, locks and open calls show. */
import type { ChannelSnapshot } from "./channel/channel-messages.ts";
import { describeChain, type WaitEdge, waitChain } from "./device-lock/wait-for.ts";

export type Standstill = {
  readonly waits: readonly { readonly who: string; readonly on: string }[];
  readonly text: string;
};

/** The waits that channels know of: takers for data from producers, putters for room made by consumers. */
export function channelWaits(snapshots: readonly ChannelSnapshot[]): WaitEdge[] {
  const edges: WaitEdge[] = [];
  for (const { channel, streams } of snapshots) {
    for (const { waitingTakes, waitingPuts, producers, consumers } of streams) {
      for (const { worker } of waitingTakes) {
        for (const producer of producers) {
          if (producer.worker !== worker)
            edges.push({ waiter: worker, waitsFor: producer.worker, on: channel, kind: "data" });
        }
        if (producers.length === 0) edges.push({ waiter: worker, waitsFor: "nobody", on: channel, kind: "data" });
      }
      for (const { worker } of waitingPuts) {
        for (const consumer of consumers) {
          if (consumer.worker !== worker)
            edges.push({ waiter: worker, waitsFor: consumer.worker, on: channel, kind: "credit" });
        }
        if (consumers.length === 0) edges.push({ waiter: worker, waitsFor: "nobody", on: channel, kind: "credit" });
      }
    }
  }
  return edges;
}

export function describeStandstill(
  calls: readonly {
    readonly call: string;
    readonly method: string;
    readonly worker: string;
    readonly replied: boolean;
  }[],
  channels: readonly ChannelSnapshot[],
  locks: readonly WaitEdge[],
  busyMs: (worker: string) => number,
): Standstill {
  const edges = [...locks, ...channelWaits(channels)];
  const waiting = new Set(edges.map((edge) => edge.waiter));
  const waits = [...waiting].map((who) => ({ who, on: describeChain(waitChain(who, edges)) }));
  const running = calls
    .filter((call) => !call.replied && !waiting.has(call.worker))
    .map(({ worker, method }) => {
      const busy = Math.round(busyMs(worker) / 1000);
      return {
        who: worker,
        on:
          busy > 0
            ? `its own '${method}', which computes without a pause for ${busy} s`
            : `its own '${method}' to return`,
      };
    });
  const all = [...waits, ...running];
  return { waits: all, text: all.map(({ who, on }) => `'${who}' waits for ${on}`).join("; ") || "no call is open" };
}
