/** What the page knows of one run, kept up to date: each number that the server says has grown is asked for from there on. */
import { colourSlots } from "../view/colours.ts";
import type { EpisodeLine } from "../view/episodes.ts";
import type { Fault } from "../view/faults.ts";
import { SpanTable, spanHeader } from "../view/span-table.ts";
import type { Metric, RunFacts, RunNow, Versions } from "../view/wire.ts";
import { api, type Connection, follow } from "./api.ts";

export type Part = "facts" | "metrics" | "faults" | "episodes" | "spans";

/** After a request that failed, and between those for spans, of which there may be more each time. */
const [failedMs, spansMs] = [1000, 100];

export class RunStore {
  readonly runId: string;
  now: RunNow | undefined;
  facts: RunFacts | undefined;
  problem: string | undefined;
  metrics: Metric[] = [];
  faults: Fault[] = [];
  episodes: EpisodeLine[] = [];
  spans: SpanTable = new SpanTable();
  versions: Versions | undefined;
  readonly #changed: () => void;
  readonly #close: () => void;
  readonly #busy = new Set<Part>();
  readonly #wanted = new Set<Part>();
  /** what was fetched, by what was known of it then */
  readonly #answered = new Map<Part, Versions | undefined>();
  #isClosed = false;

  constructor(runId: string, changed: () => void, onConnection: (connection: Connection) => void) {
    this.runId = runId;
    this.#changed = changed;
    const path = `/api/runs/${encodeURIComponent(runId)}/live`;
    this.#close = follow(path, (_, data) => this.#onRun(data as { versions: Versions; now?: RunNow }), onConnection, [
      "run",
    ]);
    // Where there is no such run, the stream only says that it cannot be had.
    api.now(runId).then(
      (found) => {
        this.now ??= found;
        changed();
      },
      (error: Error) => {
        this.problem = error.message;
        changed();
      },
    );
  }

  /** Says that a part is looked at: it is fetched at once, and kept up to date. */
  want(part: Part): void {
    if (this.#wanted.has(part)) return;
    this.#wanted.add(part);
    this.#catchUp();
  }

  /** The server has more of it than was fetched, or nobody has asked it yet. */
  lacks(part: Part): boolean {
    const { versions, spans } = this;
    if (versions === undefined) return !this.#answered.has(part);
    // What was asked for since may be ahead of what was said.
    const isNews = this.#answered.get(part) !== versions;
    if (part === "facts") return isNews && this.facts?.version !== versions.facts;
    const count = versions[part];
    if (count === null) return isNews;
    if (part !== "spans") return count > this[part].length;
    return count > spans.length || versions.spanGeneration !== spans.generation || (isNews && versions.isReadingSpans);
  }

  close(): void {
    this.#isClosed = true;
    this.#close();
  }

  get components(): string[] {
    const planned = Object.keys(this.facts?.plan?.components ?? {});
    const seen = this.spans.workers.map(componentOf);
    return [...new Set([...planned, ...seen])];
  }

  get slots(): ReadonlyMap<string, number> {
    return colourSlots(this.components);
  }

  #onRun({ versions, now }: { versions: Versions; now?: RunNow }): void {
    this.versions = versions;
    this.problem = undefined;
    for (const part of ["metrics", "faults", "episodes"] as const)
      if ((versions[part] ?? Number.POSITIVE_INFINITY) < this[part].length) this[part] = [];
    if (now) this.now = now;
    this.#catchUp();
    this.#changed();
  }

  #catchUp(): void {
    if (this.#isClosed) return;
    this.#fetch("facts", async () => {
      this.facts = await api.facts(this.runId);
    });
    this.#fetchMore("metrics", (from) => api.metrics(this.runId, from));
    this.#fetchMore("faults", (from) => api.faults(this.runId, from));
    this.#fetchMore("episodes", (from) => api.episodes(this.runId, from));
    this.#fetch("spans", () => this.#readSpans());
  }

  #fetchMore<T>(part: "metrics" | "faults" | "episodes", get: (from: number) => Promise<T[]>): void {
    this.#fetch(part, async () => {
      const list = this[part] as unknown as T[];
      const more = await get(list.length);
      list.push(...more);
    });
  }

  #fetch(part: Part, get: () => Promise<void>): void {
    if (this.#busy.has(part) || !this.#wanted.has(part) || !this.lacks(part)) return;
    const { versions } = this;
    this.#busy.add(part);
    let retryMs = 0;
    get()
      .then(
        () => void this.#answered.set(part, versions),
        () => {
          retryMs = failedMs;
        },
      )
      .finally(() => {
        this.#busy.delete(part);
        if (this.#isClosed) return;
        this.#changed();
        setTimeout(() => this.#catchUp(), Math.max(retryMs, part === "spans" ? spansMs : 0));
      });
  }

  async #readSpans(): Promise<void> {
    for (;;) {
      const before = this.spans.length;
      const bytes = await api.spans(this.runId, before);
      const { generation, isAll } = spanHeader(bytes);
      const isOther = generation !== this.spans.generation;
      if (isOther) this.spans = new SpanTable(generation);
      else this.spans.decode(bytes);
      if (!isOther && (isAll || this.spans.length === before)) return;
      this.#changed();
    }
  }
}

/** `rollout/0` → `rollout` */
export const componentOf = (worker: string): string => worker.replace(/\/[^/]*$/, "");
