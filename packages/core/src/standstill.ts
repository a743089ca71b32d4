/** Who waits for whom, in words, when nothing moves (S3). Pure, over what channels, locks and open calls show. */
import type { ChannelSnapshot } from "./channel/channel-messages.ts";
import { describeChain, type WaitEdge, waitChain } from "./device-lock/wait-for.ts";

export type Standstill = {
  readonly waits: readonly { readonly who: string; readonly on: string }[];
  readonly text: string;
};

/** The waits that channels know of: takers for data from producers, or for ranks of their gang; putters for room made by consumers. */
export function channelWaits(snapshots: readonly ChannelSnapshot[]): WaitEdge[] {
  const edges: WaitEdge[] = [];
  for (const { channel, streams } of snapshots) {
    for (const { waitingTakes, waitingPuts, producers, consumers } of streams) {
      for (const { worker, isWorking, missing = [] } of waitingTakes) {
        if (isWorking) continue;
        for (const fellow of missing) edges.push({ waiter: worker, waitsFor: fellow, on: channel, kind: "data" });
        if (missing.length > 0) continue;
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

type OpenCall = {
  readonly call: string;
  readonly method: string;
  readonly worker: string;
  readonly replied: boolean;
  /** why no process has it; absent where one has */
  readonly unsent?: string | undefined;
};

/**
 * What a workflow has to change where only a call that it has not made can end the waiting: every open call waits, and some
 * of them on channels whose other end no open call holds. Undefined while anything else may still move.
 */
export function describeMissingCalls(
  calls: readonly OpenCall[],
  channels: readonly ChannelSnapshot[],
  locks: readonly WaitEdge[],
): string | undefined {
  const edges = [...locks, ...channelWaits(channels)];
  const waiting = new Set(edges.map((edge) => edge.waiter));
  if (edges.some(({ kind }) => kind === "swap")) return undefined; // memory moves
  if (calls.some(({ replied, worker }) => !replied && !waiting.has(worker))) return undefined;
  const missing = edges
    .filter(({ waitsFor }) => waitsFor === "nobody")
    .map(({ waiter, on, kind }) => {
      const method = calls.find((call) => call.worker === waiter && !call.replied)?.method;
      const who = method === undefined ? "the workflow" : `'${componentOf(waiter)}.${method}'`;
      return kind === "data" ? missingProducer(who, on) : missingConsumer(who, on);
    });
  return missing.length === 0 ? undefined : [...new Set(missing)].join("; ");
}

const isWorkflow = (who: string) => who === "the workflow";

const missingProducer = (who: string, channel: string) =>
  `${who} waits for items of '${channel}', into which no open call puts; make the call that gets '${channel}.sink' before ${isWorkflow(who) ? "taking from it" : `awaiting ${who}`}`;

const missingConsumer = (who: string, channel: string) =>
  `${who} waits for room in '${channel}', from which no open call takes; make the call that gets '${channel}.source' before ${isWorkflow(who) ? "putting so much" : `awaiting ${who}`}, or raise flow.capacity`;

const componentOf = (worker: string) => worker.slice(0, worker.lastIndexOf("/"));

export function describeStandstill(
  calls: readonly OpenCall[],
  channels: readonly ChannelSnapshot[],
  others: readonly WaitEdge[],
  busyMs: (worker: string) => number,
): Standstill {
  const edges = [...others, ...channelWaits(channels)];
  const waiting = new Set(edges.map((edge) => edge.waiter));
  const waits = [...waiting].map((who) => ({ who, on: describeChain(waitChain(who, edges)) }));
  const running = calls
    .filter((call) => !call.replied && !waiting.has(call.worker))
    .map(({ worker, method, unsent }) => {
      if (unsent !== undefined) return { who: worker, on: `${unsent}, before it gets '${method}'` };
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
