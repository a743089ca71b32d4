/**
 * All runs of a pool on one self-contained page: a lane for every device, two where runs share it, with the leases that runs held
 * and what they computed; one for every run, with its waits and the pool's decisions; below them decisions and their reasons.
 */
import { componentOf, describePoolWait, SpanCategory, TreadleError } from "@treadle/contracts";
import { durationClass, occupiesDevices, readTrace, surveyTrace, writeTextFile } from "@treadle/observe";
import { readPoolHistory } from "../data/pool-history-reader.ts";
import { colourSlots } from "../view/colours.ts";
import { deviceRange, plural } from "../view/format.ts";
import { componentOfWork, type HeldLease, type PoolStory, poolStory, withShortNames } from "../view/pool-story.ts";
import { Texts } from "../view/texts.ts";
import { poolBelow, poolScript, poolStyle } from "./pool-panel.ts";
import { embedded, shortestShown, timelineEnd, timelineStart } from "./timeline-page.ts";

export type PoolTimelineOptions = {
  /** the files of the history, in the order in which they were written */
  readonly history: readonly string[];
  /** where the trace of a run is, by its id; undefined where there is none */
  readonly traceOf: (runId: string) => Promise<string | undefined>;
  readonly title: string;
  /** spans of traces on the page at most; default 200000 */
  readonly maxSpans?: number | undefined;
};

export type PoolTimeline = {
  readonly runs: readonly string[];
  readonly numDecisions: number;
  /** what is not on the page, and why */
  readonly lacks: readonly string[];
};

/** The newest are shown; more would make the page slow. */
const mostDecisions = 5000;
const mostLeases = 100_000;

/** What a page of a pool draws beside what workers record. */
const labels = {
  lease: "has a lease",
  waits: "waits",
  beside: "begins beside",
  after: "waits for its turn",
  yields: "has to yield",
  ended: "is ended",
} as const;
const categories = [...SpanCategory.options, ...Object.keys(labels)] as const;
const categoryOf = (name: SpanCategory | keyof typeof labels): number => categories.indexOf(name);

/** Rejects with `run.incomplete` where the history has nothing. */
export async function toHtmlPoolTimeline(options: PoolTimelineOptions, outputPath: string): Promise<PoolTimeline> {
  const { entries, numDamaged } = await readPoolHistory(options.history);
  if (entries.length === 0)
    throw new TreadleError(
      "run.incomplete",
      `the history '${options.history.at(-1)}' holds no whole line, so there is nothing to show`,
    );
  const story = withShortNames(poolStory(entries));
  const traces = new Map<string, string>();
  const lacks: string[] =
    numDamaged > 0
      ? [`${plural(numDamaged, "line")} of the history that ${numDamaged === 1 ? "is" : "are"} not whole`]
      : [];
  if (story.numLosses > 0)
    lacks.push(`what the pool could not write: lines are lost at ${plural(story.numLosses, "place")}`);
  for (const run of story.runs) {
    const path = await options.traceOf(story.runIds.get(run) ?? run);
    if (path === undefined) lacks.push(`what '${run}' computed: it has no trace here`);
    else traces.set(run, path);
  }
  const page = new PoolPage(story);
  const shownDecisions = story.decisions.slice(-mostDecisions);
  const leases = story.leases.slice(-mostLeases);
  if (shownDecisions.length < story.decisions.length) lacks.push(`all but the newest ${mostDecisions} decisions`);
  if (leases.length < story.leases.length) lacks.push(`all but the newest ${mostLeases} leases`);
  const surveys = new Map<string, string>();
  /** their traces say what they computed */
  const traced = new Set<string>();
  for (const [run, path] of traces) {
    try {
      const { components, devices } = await surveyTrace([path]);
      page.addComponents(run, components);
      surveys.set(run, path);
      if (devices.length > 0 && (await computes(path))) traced.add(run);
    } catch (error) {
      if (!(error instanceof TreadleError)) throw error;
      lacks.push(`what '${run}' computed: ${error.message}`);
    }
  }
  const shortest = shortestShown(await surveyTrace([...surveys.values()]), options.maxSpans ?? 200_000);
  let numSpans = 0;
  let numHidden = 0;

  async function* text() {
    yield timelineStart(options.title, { style: poolStyle, below: poolBelow });
    yield '<script type="application/json" id="spans">[';
    const separated = (row: unknown) => `${numSpans++ === 0 ? "" : ",\n"}${embedded(row)}`;
    for (const lease of leases) {
      for (const row of page.leaseRows(lease)) yield separated(row);
      for (const row of traced.has(lease.run) ? [] : page.workRows(lease)) yield separated(row);
    }
    for (const row of page.waitRows()) yield separated(row);
    for (const decision of shownDecisions) yield separated(page.decisionRow(decision));
    for (const [run, path] of surveys) {
      for await (const { worker, records } of readTrace([path])) {
        for (const record of records) {
          if (record.kind !== "span" || !occupiesDevices(record) || record.durationMs === 0) continue;
          if (record.startMs < story.fromMs) continue;
          if (durationClass(record.durationMs) < shortest) numHidden++;
          else for (const row of page.spanRows(run, worker, record)) yield separated(row);
        }
      }
    }
    yield "]</script>\n";
    yield timelineEnd({ ...page.summary(options.title, lacks), numHidden, numDropped: 0 }, poolScript);
  }
  await writeTextFile(outputPath, text());
  return { runs: story.runs, numDecisions: story.decisions.length, lacks };
}

async function computes(trace: string): Promise<boolean> {
  for await (const { records } of readTrace([trace]))
    if (records.some((each) => each.kind === "span" && each.category === "compute" && each.devices)) return true;
  return false;
}

type Row = readonly unknown[];
type Lane = {
  readonly group: "devices" | "runs";
  readonly label: string;
  readonly component: number;
  readonly sub: number;
};
type PlacedLease = HeldLease & { readonly sub: number };
type Occupying = {
  readonly name: string;
  readonly category: SpanCategory;
  readonly startMs: number;
  readonly durationMs: number;
  readonly step?: number | undefined;
  readonly devices?: readonly string[] | undefined;
};

class PoolPage {
  readonly #story: PoolStory;
  readonly #names = new Texts();
  readonly #lanes: Lane[] = [];
  readonly #laneOf = new Map<string, number>();
  /** runs first, then what they compute with: `one · rollout` */
  readonly #components: string[];
  readonly #runOf = new Map<string, string>();
  /** of each run on each device, in order: where what it computed belongs */
  readonly #placed = new Map<string, PlacedLease[]>();
  #toMs: number;

  constructor(story: PoolStory) {
    this.#story = story;
    this.#toMs = story.toMs;
    this.#components = [...story.runs];
    for (const run of story.runs) this.#runOf.set(run, run);
    for (const device of story.devices) this.#lane("devices", device, 0);
    for (const run of story.runs) this.#lane("runs", run, 0);
    this.#place();
  }

  addComponents(run: string, components: readonly string[]): void {
    for (const component of components) this.#component(run, component);
  }

  leaseRows({ run, token, devices, fromMs, toMs, works }: HeldLease): Row[] {
    const extra = {
      devices: deviceRange(devices),
      ...(works.length === 0 ? {} : { computes: works.map(({ work }) => componentOfWork(work)).join(", ") }),
    };
    return devices.map((device) => {
      const sub = this.#leaseAt(run, device, fromMs)?.sub ?? 0;
      const lane = this.#lane("devices", device, sub);
      return this.#row(lane, fromMs, toMs - fromMs, `lease ${token}`, "lease", run, run, extra);
    });
  }

  /** What a run without a trace has said that it computes. */
  workRows({ run, devices, works, toMs }: HeldLease): Row[] {
    return works.flatMap(({ work, fromMs }, i) => {
      const component = componentOfWork(work);
      const durationMs = (works[i + 1]?.fromMs ?? toMs) - fromMs;
      const span = { name: component, category: "compute", startMs: fromMs, durationMs, devices } as const;
      return this.spanRows(run, component, span);
    });
  }

  /** In the colour of the run that is waited for. */
  waitRows(): Row[] {
    return this.#story.waits
      .filter(({ fromMs, toMs }) => toMs > fromMs)
      .map(({ run, on, fromMs, toMs }) => {
        const lane = this.#lane("runs", run, 0);
        const other = on.runs.find((each) => this.#runOf.has(each)) ?? run;
        return this.#row(lane, fromMs, toMs - fromMs, describePoolWait(on), "waits", other, run, {});
      });
  }

  decisionRow({ atMs, type, run, others, devices, why }: PoolStory["decisions"][number]): Row {
    const extra = { ...(others.length === 0 ? {} : { of: others.join(", ") }), devices: deviceRange(devices), why };
    return this.#row(this.#lane("runs", run, 0), atMs, 0, labels[type], type, run, run, extra);
  }

  /** On the lane of the lease under which its run computed then. */
  spanRows(run: string, worker: string, { name, category, startMs, durationMs, step, devices = [] }: Occupying): Row[] {
    this.#toMs = Math.max(this.#toMs, startMs + durationMs);
    const component = this.#component(run, componentOf(worker));
    const extra = { ...(step === undefined ? {} : { step }), devices: deviceRange(devices) };
    return devices.map((device) => {
      const lease = this.#leaseAt(run, device, startMs + durationMs / 2);
      const lane = this.#lane("devices", device, lease?.sub ?? 0);
      return this.#row(lane, startMs, durationMs, name, category, component, `${run} · ${worker}`, extra);
    });
  }

  summary(title: string, lacks: readonly string[]) {
    const { fromMs, decisions } = this.#story;
    const runs = colourSlots(this.#story.runs);
    const numOfRun = new Map<string, number>();
    const shades = this.#components.map((component) => {
      const run = this.#runOf.get(component) as string;
      if (run === component) return 0;
      const shade = numOfRun.get(run) ?? 0;
      numOfRun.set(run, shade + 1);
      return shade;
    });
    return {
      ...{ title, groups: ["devices", "runs"], whole: "all runs", whose: "run", lacks, labels, categories, shades },
      fromMs,
      durationUs: Math.round((this.#toMs - fromMs) * 1000),
      components: this.#components,
      slots: this.#components.map((component) => runs.get(this.#runOf.get(component) as string)),
      ...{ lanes: this.#lanes, names: this.#names.list, arrows: [] },
      decisions: decisions
        .slice(-mostDecisions)
        .map(({ atMs, type, run, others, devices, why }) => [
          this.#us(atMs),
          type,
          run,
          others,
          deviceRange(devices),
          why,
        ]),
      waited: this.#waited(),
    };
  }

  /** `[run, whom it waited for, µs]`, the longest first. */
  #waited(): Row[] {
    const sums = new Map<string, [run: string, what: string, us: number]>();
    for (const { run, on, fromMs, toMs } of this.#story.waits) {
      const what = describePoolWait({ type: on.type, runs: on.runs });
      const sum = sums.get(`${run}\n${what}`) ?? [run, what, 0];
      sum[2] += Math.round((toMs - fromMs) * 1000);
      sums.set(`${run}\n${what}`, sum);
    }
    return [...sums.values()].filter(([, , us]) => us > 0).sort((a, b) => b[2] - a[2]);
  }

  /** Leases of one device that overlap come on lanes of their own, and stay there. */
  #place(): void {
    const ends = new Map<string, number[]>();
    for (const lease of [...this.#story.leases].sort((a, b) => a.fromMs - b.fromMs)) {
      for (const device of lease.devices) {
        const lanes = ends.get(device) ?? [];
        ends.set(device, lanes);
        const free = lanes.findIndex((endMs) => endMs <= lease.fromMs);
        const sub = free < 0 ? lanes.length : free;
        lanes[sub] = lease.toMs;
        const key = placeKey(lease.run, device);
        const placed = this.#placed.get(key) ?? [];
        placed.push({ ...lease, sub });
        this.#placed.set(key, placed);
      }
    }
  }

  /** The last of the run's leases of the device that began by then. */
  #leaseAt(run: string, device: string, atMs: number): PlacedLease | undefined {
    const placed = this.#placed.get(placeKey(run, device)) ?? [];
    let [low, high] = [0, placed.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((placed[middle] as PlacedLease).fromMs <= atMs) low = middle + 1;
      else high = middle;
    }
    return placed[low - 1];
  }

  #component(run: string, component: string): string {
    const name = `${run} · ${component}`;
    if (!this.#runOf.has(name)) {
      this.#runOf.set(name, run);
      this.#components.push(name);
    }
    return name;
  }

  #lane(group: Lane["group"], label: string, sub: number): number {
    const key = `${group} ${sub} ${label}`;
    const known = this.#laneOf.get(key);
    if (known !== undefined) return known;
    const component = group === "runs" ? this.#components.indexOf(label) : -1;
    const index = this.#lanes.push({ group, label, component, sub }) - 1;
    this.#laneOf.set(key, index);
    return index;
  }

  /** As `timelineDrawing` has them. */
  #row(
    lane: number,
    startMs: number,
    durationMs: number,
    name: string,
    category: SpanCategory | keyof typeof labels,
    component: string,
    whose: string,
    extra: Readonly<Record<string, unknown>>,
  ): Row {
    const step = -1; // steps of several runs are no common axis
    const [text, index] = [this.#names.of(name), this.#components.indexOf(component)];
    const lasts = Math.round(durationMs * 1000);
    return [lane, this.#us(startMs), lasts, text, categoryOf(category), index, step, this.#names.of(whose), extra];
  }

  #us(atMs: number): number {
    return Math.round((atMs - this.#story.fromMs) * 1000);
  }
}

const placeKey = (run: string, device: string): string => JSON.stringify([run, device]);
