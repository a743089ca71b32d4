/** What the page knows of one run, kept up to date: each number that the server says has grown is asked for from there on. */
import { colourSlots } from "../view/colours.ts";
import type { EpisodeLine } from "../view/episodes.ts";
import type { Fault } from "../view/faults.ts";
import { SpanTable, spanHeader } from "../view/span-table.ts";
import type { Metric, RunFacts, RunNow, Versions } from "../view/wire.ts";
import { api, type Connection, follow } from "./api.ts";

export type Part = "facts" | "metrics" | "faults" | "episodes" | "spans";

export class RunStore {
  readonly runId: string;
  now: RunNow | undefined;
  facts: RunFacts | undefined;
  problem: string | undefined;
  metrics: Metric[] = [];
  faults: Fault[] = [];
  episodes: EpisodeLine[] = [];
  spans: SpanTable = new SpanTable();
  isReadingSpans = true;
  versions: Versions | undefined;
  readonly #changed: () => void;
  readonly #close: () => void;
  readonly #busy = new Set<Part>();
  readonly #wanted = new Set<Part>();
  /** what was fetched at least once: a server reads it only then, and says from then on that there is more */
  readonly #answered = new Set<Part>();
  #factsVersion: number | undefined;
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

  /** It has never been answered. */
  isReading(part: Part): boolean {
    return !this.#answered.has(part);
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
    if (now) this.now = now;
    this.#catchUp();
    this.#changed();
  }

  #catchUp(): void {
    const { versions } = this;
    if (this.#isClosed) return;
    if (versions !== undefined) {
      if (versions.metrics < this.metrics.length) this.metrics = [];
      if (versions.faults < this.faults.length) this.faults = [];
      if (versions.episodes < this.episodes.length) this.episodes = [];
    }
    this.#fetch("facts", this.#factsVersion !== versions?.facts, async () => {
      this.facts = await api.facts(this.runId);
      this.#factsVersion = versions?.facts;
    });
    this.#fetchMore("metrics", this.metrics, versions?.metrics, (from) => api.metrics(this.runId, from));
    this.#fetchMore("faults", this.faults, versions?.faults, (from) => api.faults(this.runId, from));
    this.#fetchMore("episodes", this.episodes, versions?.episodes, (from) => api.episodes(this.runId, from));
    const { length, generation } = this.spans;
    const hasSpans = versions !== undefined && (versions.spans > length || versions.spanGeneration !== generation);
    this.#fetch("spans", hasSpans, () => this.#readSpans());
  }

  #fetchMore<T>(part: Part, list: T[], count: number | undefined, get: (from: number) => Promise<T[]>): void {
    this.#fetch(part, count !== undefined && count > list.length, async () => {
      const more = await get(list.length);
      list.push(...more);
    });
  }

  /** `hasMore`: the server has said so. */
  #fetch(part: Part, hasMore: boolean, get: () => Promise<void>): void {
    const isDue = hasMore || !this.#answered.has(part);
    if (!isDue || this.#busy.has(part) || !this.#wanted.has(part)) return;
    this.#busy.add(part);
    get()
      .then(
        () => {
          this.#answered.add(part);
          setTimeout(() => this.#catchUp(), part === "spans" ? 100 : 0);
        },
        () => {}, // the stream says when the server is back
      )
      .finally(() => {
        this.#busy.delete(part);
        if (!this.#isClosed) this.#changed();
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
      this.isReadingSpans = isOther || !isAll;
      // Where none came, the stream says when there are more.
      if (!this.isReadingSpans || (this.spans.length === before && !isOther)) return;
      this.#changed();
    }
  }
}

/** `rollout/0` → `rollout` */
export const componentOf = (worker: string): string => worker.replace(/\/[^/]*$/, "");
