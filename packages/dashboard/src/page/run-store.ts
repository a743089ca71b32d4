/** What the page knows of one run, kept up to date: each number that the server says has grown is asked for from there on. */
import { colourSlots } from "../view/colours.ts";
import type { EpisodeLine } from "../view/episodes.ts";
import type { Fault } from "../view/faults.ts";
import { SpanTable, spanHeader } from "../view/span-table.ts";
import type { Metric, RunFacts, RunNow, Versions } from "../view/wire.ts";
import { api, type Connection, follow } from "./api.ts";

type Part = "facts" | "metrics" | "faults" | "episodes" | "spans";

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
  #factsVersion = -1;
  #isClosed = false;

  constructor(runId: string, changed: () => void, onConnection: (connection: Connection) => void) {
    this.runId = runId;
    this.#changed = changed;
    const path = `/api/runs/${encodeURIComponent(runId)}/live?spans=1`;
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

  /** Says that a part is looked at; until then it is not fetched. */
  want(part: Part): void {
    if (this.#wanted.has(part)) return;
    this.#wanted.add(part);
    this.#catchUp();
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
    if (versions === undefined || this.#isClosed) return;
    if (versions.metrics < this.metrics.length) this.metrics = [];
    if (versions.faults < this.faults.length) this.faults = [];
    if (versions.episodes < this.episodes.length) this.episodes = [];
    this.#fetch("facts", this.#factsVersion !== versions.facts, async () => {
      const { facts } = versions;
      this.facts = await api.facts(this.runId);
      this.#factsVersion = facts;
    });
    this.#fetchMore("metrics", this.metrics, versions.metrics, (from) => api.metrics(this.runId, from));
    this.#fetchMore("faults", this.faults, versions.faults, (from) => api.faults(this.runId, from));
    this.#fetchMore("episodes", this.episodes, versions.episodes, (from) => api.episodes(this.runId, from));
    this.#fetch("spans", versions.spans > this.spans.length || versions.spanGeneration !== this.spans.generation, () =>
      this.#readSpans(),
    );
  }

  #fetchMore<T>(part: Part, list: T[], count: number, get: (from: number) => Promise<T[]>): void {
    this.#fetch(part, count > list.length, async () => {
      const more = await get(list.length);
      list.push(...more);
    });
  }

  #fetch(part: Part, isDue: boolean, get: () => Promise<void>): void {
    if (!isDue || this.#busy.has(part) || !this.#wanted.has(part)) return;
    this.#busy.add(part);
    get()
      .catch(() => {}) // the stream says when the server is back
      .finally(() => {
        this.#busy.delete(part);
        if (this.#isClosed) return;
        this.#changed();
      })
      .then(() => setTimeout(() => this.#catchUp(), part === "spans" ? 100 : 0));
  }

  async #readSpans(): Promise<void> {
    for (;;) {
      const bytes = await api.spans(this.runId, this.spans.length);
      const { generation, total, count } = spanHeader(bytes);
      if (generation !== this.spans.generation) this.spans = new SpanTable(generation);
      else this.spans.decode(bytes);
      this.isReadingSpans = this.spans.length < total;
      if (!this.isReadingSpans || (count === 0 && generation === this.spans.generation)) return;
      this.#changed();
    }
  }
}

/** `rollout/0` → `rollout` */
export const componentOf = (worker: string): string => worker.replace(/\/[^/]*$/, "");
