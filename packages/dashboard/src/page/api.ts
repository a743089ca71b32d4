/** What the page asks the server, and how it stays in touch. */

import type { CompletionRecord } from "@treadle/contracts";
import type { EpisodeLine } from "../view/episodes.ts";
import type { Fault } from "../view/faults.ts";
import {
  type ActionStatus,
  type ClusterStatus,
  decodeNumber,
  type LoggedWorker,
  type LogPage,
  type Metric,
  type RunFacts,
  type RunNow,
  type RunRow,
  type Versions,
} from "../view/wire.ts";

export class Unreachable extends Error {}

async function get(path: string): Promise<Response> {
  const response = await fetch(path).catch((cause: unknown) => {
    throw new Unreachable("the dashboard does not answer", { cause });
  });
  if (!response.ok) throw new Error((await response.text()).trim() || `${response.status}`);
  return response;
}

const json = async <T>(path: string): Promise<T> => JSON.parse(await (await get(path)).text(), decodeNumber) as T;
const run = (id: string): string => `/api/runs/${encodeURIComponent(id)}`;

export const api = {
  cluster: () => json<ClusterStatus>("/api/cluster"),
  actions: () => json<ActionStatus>("/api/actions"),
  runs: () => json<RunRow[]>("/api/runs"),
  now: (id: string) => json<RunNow & { versions: Versions }>(run(id)),
  facts: (id: string) => json<RunFacts>(`${run(id)}/facts`),
  flowPicture: (id: string) => `${run(id)}/flow.svg`,
  metrics: (id: string, from: number) => json<Metric[]>(`${run(id)}/metrics?from=${from}`),
  faults: (id: string, from: number) => json<Fault[]>(`${run(id)}/faults?from=${from}`),
  episodes: (id: string, from: number) => json<EpisodeLine[]>(`${run(id)}/episodes?from=${from}`),
  episode: (id: string, index: number) => json<CompletionRecord>(`${run(id)}/episodes/${index}`),
  logged: (id: string) => json<LoggedWorker[]>(`${run(id)}/logs`),
  log: (id: string, worker: string, place: string) =>
    json<LogPage>(`${run(id)}/logs?worker=${encodeURIComponent(worker)}${place}`),
  span: (id: string, row: number) => json<Record<string, unknown>>(`${run(id)}/spans/${row}`),
  spans: async (id: string, from: number) => (await get(`${run(id)}/spans?from=${from}`)).arrayBuffer(),
};

export type Connection = "connecting" | "live" | "lost";

/**
 * A stream of events that comes back by itself: after a loss it tries again, ever more seldom, until it is closed. Whoever
 * listens asks for what it lacks by the numbers that each event has, so nothing is missed in between.
 */
export function follow(
  path: string,
  onEvent: (name: string, data: unknown) => void,
  onConnection: (connection: Connection) => void,
  names: readonly string[],
): () => void {
  let source: EventSource | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let waitMs = 500;
  const open = () => {
    source = new EventSource(path);
    source.onopen = () => {
      waitMs = 500;
      onConnection("live");
    };
    source.onerror = () => {
      source?.close();
      onConnection("lost");
      timer = setTimeout(open, waitMs);
      waitMs = Math.min(10_000, waitMs * 2);
    };
    for (const name of names) {
      source.addEventListener(name, (event) =>
        onEvent(name, JSON.parse((event as MessageEvent).data as string, decodeNumber)),
      );
    }
  };
  onConnection("connecting");
  open();
  return () => {
    clearTimeout(timer);
    source?.close();
  };
}
