/**
 * One run as its folder has it, read again whenever something changed.
 *
 * Owner of: what was read so far. It writes nothing, so looking at a run changes nothing of it.
 *
 * RD1 every file is optional and may be half written or damaged: the rest is shown, and what is missing is said.
 * RD2 memory is bounded: curves and notices are thinned, metrics rows are capped, spans have columns.
 */
import { readFile, stat } from "node:fs/promises";
import { basename, join } from "node:path";
import { FlowGraph, Plan, PlanPrediction, RunEvent, RunSummary } from "@treadle/contracts";
import { LineTail, type MetricsRow, parseEventLine, redactSecrets } from "@treadle/observe";
import { z } from "zod";
import { type Fault, faultOf } from "../view/faults.ts";
import { remedyOf, runPhase } from "../view/run-status.ts";
import { fold, initialState, type RunState } from "../view/state.ts";
import type { Metric, RunFacts, RunNow, RunRow, Versions } from "../view/wire.ts";
import { CompletionReader } from "./completion-reader.ts";
import { TraceReader } from "./trace-reader.ts";

const StoredConfig = z.object({ workflow: z.string(), config: z.unknown() });
const MetricsLine = z.object({ step: z.int().nonnegative() }).catchall(z.unknown());

const maxRows = 100_000;
const maxFaults = 5000;
const maxCurvePoints = 48;

/** JSON files of a run's folder, each read again when its time of change is another one. */
class JsonFile<Shape> {
  readonly #path: string;
  readonly #schema: z.ZodType<Shape>;
  #seen = "";
  value: Shape | undefined;
  isDamaged = false;
  version = 0;

  constructor(path: string, schema: z.ZodType<Shape>) {
    this.#path = path;
    this.#schema = schema;
  }

  async refresh(): Promise<void> {
    const found = await stat(this.#path).catch(() => undefined);
    const seen = found ? `${found.ino} ${found.size} ${found.mtimeMs}` : "";
    if (seen === this.#seen) return;
    this.#seen = seen;
    this.version++;
    this.value = undefined;
    this.isDamaged = false;
    if (!found || found.size > maxJsonBytes) return;
    try {
      this.value = this.#schema.parse(JSON.parse(await readFile(this.#path, "utf8")));
    } catch {
      this.isDamaged = true;
    }
  }
}

const maxJsonBytes = 16 * 2 ** 20;

export class RunData {
  readonly runId: string;
  readonly folder: string;
  readonly trace: TraceReader;
  readonly completions: CompletionReader;
  readonly #config: JsonFile<z.infer<typeof StoredConfig>>;
  readonly #plan: JsonFile<Plan>;
  readonly #prediction: JsonFile<PlanPrediction>;
  readonly #summary: JsonFile<RunSummary>;
  readonly #graph: JsonFile<FlowGraph>;
  readonly #metricsTail: LineTail;
  readonly #eventsTail: LineTail;
  #rows: Metric[] = [];
  #faults: Fault[] = [];
  #state: RunState = initialState;
  #damagedLines = new Map<string, number>();
  #hasFailed = false;
  #isJournalFinished = false;
  #journalSeen = "";
  #beatAgeMs: number | undefined;
  #changedAtMs = 0;
  #lastPhase = "";
  #nowVersion = 0;
  #refreshing: Promise<void> | undefined;

  constructor(folder: string) {
    this.folder = folder;
    this.runId = basename(folder);
    this.trace = new TraceReader(join(folder, "trace.jsonl"));
    this.completions = new CompletionReader(folder);
    this.#config = new JsonFile(join(folder, "config.json"), StoredConfig);
    this.#plan = new JsonFile(join(folder, "plan.json"), Plan);
    this.#prediction = new JsonFile(join(folder, "prediction.json"), PlanPrediction);
    this.#summary = new JsonFile(join(folder, "summary.json"), RunSummary);
    this.#graph = new JsonFile(join(folder, "graph.json"), FlowGraph);
    this.#metricsTail = new LineTail(join(folder, "metrics.jsonl"));
    this.#eventsTail = new LineTail(join(folder, "events.jsonl"));
  }

  /** Everything but the trace, which takes longer, and episodes until somebody has asked for them. */
  refresh(): Promise<void> {
    this.#refreshing ??= this.#refresh().finally(() => {
      this.#refreshing = undefined;
    });
    return this.#refreshing;
  }

  async #refresh(): Promise<void> {
    await Promise.all([
      ...[this.#config, this.#plan, this.#prediction, this.#summary, this.#graph].map((file) => file.refresh()),
      this.#readMetrics(),
      this.#readEvents(),
      this.#readJournal(),
      this.#readBeat(),
      this.completions.isRead ? this.completions.refresh() : undefined,
    ]);
    const phase = `${this.phase} ${this.#summary.version}`;
    if (phase !== this.#lastPhase) this.#nowVersion++;
    this.#lastPhase = phase;
  }

  get phase() {
    return runPhase({
      beatAgeMs: this.#beatAgeMs,
      hasSummary: this.#summary.value !== undefined,
      hasFailed: this.#hasFailed,
      isJournalFinished: this.#isJournalFinished,
      silentMs: Date.now() - this.#changedAtMs,
    });
  }

  get versions(): Versions {
    return {
      now: this.#nowVersion,
      facts: this.#factsVersion,
      metrics: this.#rows.length,
      spans: this.trace.isRead ? this.trace.table.length : null,
      spanGeneration: this.trace.table.generation,
      isReadingSpans: this.trace.isRead && !this.trace.isAtEnd,
      faults: this.#faults.length,
      episodes: this.completions.isRead ? this.completions.version : null,
    };
  }

  get #factsVersion(): number {
    return [this.#config, this.#plan, this.#prediction, this.#graph].reduce((sum, { version }) => sum + version, 0);
  }

  get now(): RunNow {
    const { phase, runId } = this;
    return {
      runId,
      phase,
      remedy: remedyOf(phase, runId, this.#config.value !== undefined),
      state: this.#shownState(),
      summary: this.#summary.value,
      damages: this.#damages(),
    };
  }

  /** A run of before there were event files has its metrics all the same. */
  #shownState(): RunState {
    const last = this.#rows.at(-1);
    const config = this.#config.value;
    const runtime = (config?.config ?? {}) as { steps?: unknown; placement?: { mode?: unknown } };
    const steps = typeof runtime.steps === "number" ? runtime.steps : 0;
    return {
      ...this.#state,
      runId: this.runId,
      folder: this.folder,
      workflow: this.#state.workflow || (config ? basename(config.workflow) : ""),
      mode: this.#state.mode || this.#plan.value?.mode || "",
      numSteps: this.#state.numSteps || steps,
      step: Math.max(this.#state.step, last?.step ?? 0),
    };
  }

  get facts(): RunFacts {
    const config = this.#config.value;
    return {
      version: this.#factsVersion,
      runId: this.runId,
      folder: this.folder,
      workflow: config?.workflow ?? "",
      config: config === undefined ? undefined : JSON.parse(redactSecrets(JSON.stringify(config.config))),
      plan: this.#plan.value,
      prediction: this.#prediction.value,
      graph: this.#graph.value,
    };
  }

  metricsFrom(index: number): readonly Metric[] {
    return this.#rows.slice(Math.max(0, index));
  }

  faultsFrom(index: number): readonly Fault[] {
    return this.#faults.slice(Math.max(0, index));
  }

  get row(): RunRow {
    const state = this.#shownState();
    const rewards = this.#rows.flatMap(({ reward }) => (Number.isFinite(reward) ? [reward as number] : []));
    const accuracy = this.#rows.findLast((row) => row["accuracy"] !== undefined)?.["accuracy"];
    return {
      runId: this.runId,
      workflow: state.workflow,
      mode: state.mode,
      phase: this.phase,
      startedAtMs: state.startedAtMs ?? startOf(this.runId),
      changedAtMs: this.#changedAtMs,
      step: state.step,
      numSteps: state.numSteps,
      reward: rewards.at(-1),
      accuracy,
      curve: thinned(rewards),
    };
  }

  async #readMetrics(): Promise<void> {
    await this.#readLines(this.#metricsTail, "metrics.jsonl", {
      restart: () => {
        this.#rows = [];
      },
      line: (text) => {
        const row = MetricsLine.safeParse(parsed(text));
        if (!row.success) return false;
        const values = Object.entries(row.data).flatMap(([name, value]) => {
          const number = value === null ? Number.NaN : typeof value === "boolean" ? Number.NaN : Number(value);
          return typeof value === "object" && value !== null ? [] : [[name, number] as const];
        });
        if (this.#rows.length < maxRows) this.#rows.push(Object.fromEntries(values) as MetricsRow);
        return true;
      },
    });
  }

  async #readEvents(): Promise<void> {
    await this.#readLines(this.#eventsTail, "events.jsonl", {
      restart: () => {
        this.#state = initialState;
        this.#faults = [];
        this.#hasFailed = false;
      },
      line: (text) => {
        const event = RunEvent.safeParse(parseEventLine(text));
        if (!event.success) return false;
        this.#state = fold(this.#state, event.data);
        const { type } = event.data;
        if (type === "run-started") {
          this.#hasFailed = false;
          this.#state = { ...this.#state, failure: undefined, summary: undefined };
        }
        if (type === "run-failed") this.#hasFailed = true;
        const fault = faultOf(event.data);
        if (fault && this.#faults.length < maxFaults) this.#faults.push(fault);
        return true;
      },
    });
  }

  async #readLines(
    tail: LineTail,
    name: string,
    { restart, line }: { restart: () => void; line: (text: string) => boolean },
  ): Promise<void> {
    for (let hasMore = true; hasMore; ) {
      const read = await tail.read();
      hasMore = read.hasMore;
      if (read.restarted) {
        restart();
        this.#damagedLines.delete(name);
        this.#nowVersion++;
      }
      let numDamaged = 0;
      for (const { text } of read.lines) if (!line(text)) numDamaged++;
      if (read.lines.length > 0) this.#nowVersion++;
      if (numDamaged > 0) this.#damagedLines.set(name, (this.#damagedLines.get(name) ?? 0) + numDamaged);
    }
  }

  async #readJournal(): Promise<void> {
    const path = join(this.folder, "journal.jsonl");
    const found = await stat(path).catch(() => undefined);
    const files = await Promise.all(
      ["metrics.jsonl", "events.jsonl", "config.json"].map((name) =>
        stat(join(this.folder, name)).catch(() => undefined),
      ),
    );
    this.#changedAtMs = Math.max(0, ...[found, ...files].map((file) => file?.mtimeMs ?? 0));
    const seen = found ? `${found.ino} ${found.size}` : "";
    if (seen === this.#journalSeen) return;
    this.#journalSeen = seen;
    const end = found ? await tailOf(path, found.size) : "";
    this.#isJournalFinished = end.trimEnd().split("\n").at(-1)?.includes('"type":"finished"') ?? false;
  }

  async #readBeat(): Promise<void> {
    const lock = await stat(join(this.folder, "runner.lock")).catch(() => undefined);
    this.#beatAgeMs = lock === undefined ? undefined : Math.max(0, Date.now() - lock.mtimeMs);
  }

  #damages(): string[] {
    const files = {
      "config.json": this.#config,
      "plan.json": this.#plan,
      "prediction.json": this.#prediction,
      "graph.json": this.#graph,
      "summary.json": this.#summary,
    };
    const torn = Object.entries(files).flatMap(([name, { isDamaged }]) => (isDamaged ? [`${name} is not whole`] : []));
    const lines = [...this.#damagedLines].map(([name, count]) => `${count} lines of ${name} are damaged and left out`);
    const { numDamaged, numDropped } = this.trace;
    if (numDamaged > 0) lines.push(`${numDamaged} lines of trace.jsonl are damaged and left out`);
    if (numDropped > 0) lines.push(`${numDropped} spans were dropped by processes that made too many`);
    return [...torn, ...lines];
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

async function tailOf(path: string, size: number): Promise<string> {
  const { open } = await import("node:fs/promises");
  const file = await open(path, "r").catch(() => undefined);
  if (file === undefined) return "";
  try {
    const length = Math.min(size, 4096);
    const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, size - length);
    return buffer.toString("utf8", 0, bytesRead);
  } finally {
    await file.close();
  }
}

/** Ids begin with their start time. */
function startOf(runId: string): number | undefined {
  const [, y, mo, d, h, mi, s] = /^(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)-/.exec(runId) ?? [];
  return y === undefined ? undefined : Date.UTC(Number(y), Number(mo) - 1, Number(d), Number(h), Number(mi), Number(s));
}

function thinned(values: readonly number[]): number[] {
  const size = Math.max(1, Math.ceil(values.length / maxCurvePoints));
  const means: number[] = [];
  for (let from = 0; from < values.length; from += size) {
    const part = values.slice(from, from + size);
    means.push(part.reduce((sum, value) => sum + value, 0) / part.length);
  }
  return means;
}
