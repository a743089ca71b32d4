/**
 * Trace files as one self-contained page to look at: a lane for every device, showing whose work is on it, and one for
 * every rank, showing what it does or waits for. It needs no network. Two passes, one batch in memory; when a trace has
 * more spans than a page can hold, the shortest are left out and the page says how many.
 */
import { componentOf, SpanCategory, type SpanRecord } from "@treadle/contracts";
import {
  durationClass,
  Lanes,
  occupiesDevices,
  readTrace,
  surveyTrace,
  type TraceSurvey,
  writeTextFile,
} from "@treadle/observe";
import { colourSlots } from "../view/colours.ts";
import { Texts } from "../view/texts.ts";
import { escapeHtml, pageHead } from "./html.ts";
import { timelineDrawing } from "./timeline-drawing.ts";
import { timelineInput } from "./timeline-input.ts";
import { timelineStyle } from "./timeline-style.ts";

export type TimelineOptions = {
  readonly title?: string | undefined;
  /** spans on the page at most; default 200000 */
  readonly maxSpans?: number | undefined;
};

export async function toHtmlTimeline(
  files: readonly string[],
  outputPath: string,
  options: TimelineOptions = {},
): Promise<{ numSpans: number; numHidden: number }> {
  const survey = await surveyTrace(files);
  const shortest = shortestShown(survey, options.maxSpans ?? 200_000);
  const lanes = new LaneTable(survey);
  const names = new Texts();
  const arrows = new Arrows(survey.fromMs);
  let numShown = 0;
  let numHidden = 0;

  async function* text() {
    yield timelineStart(options.title ?? "timeline", { style: "", below: "" });
    yield '<script type="application/json" id="spans">[';
    for await (const { worker, records } of readTrace(files)) {
      for (const record of records) {
        if (record.kind === "counter") continue;
        const isShown =
          record.kind === "instant" || record.category === "step" || durationClass(record.durationMs) >= shortest;
        if (!isShown) {
          numHidden++;
          continue;
        }
        const span: SpanRecord = record.kind === "span" ? record : { ...record, kind: "span", durationMs: 0 };
        const own = lanes.of(worker, span);
        arrows.add(span, own[0] as number);
        for (const lane of own) {
          yield `${numShown++ === 0 ? "" : ",\n"}${JSON.stringify(row(span, worker, lane, survey, names))}`.replaceAll(
            "<",
            "\\u003c",
          );
        }
      }
    }
    yield "]</script>\n";
    const summary = {
      ...{ title: options.title ?? "timeline", groups: ["devices", "workers"], whole: "whole run", whose: "worker" },
      fromMs: survey.fromMs,
      durationUs: Math.round((survey.toMs - survey.fromMs) * 1000),
      components: survey.components,
      slots: survey.components.map((name) => colourSlots(survey.components).get(name)),
      categories: SpanCategory.options,
      lanes: lanes.list,
      arrows: arrows.list,
      names: names.list,
      numHidden,
      numDropped: survey.numDropped,
    };
    yield timelineEnd(summary);
  }
  await writeTextFile(outputPath, text());
  return { numSpans: numShown, numHidden };
}

export const timelineEnd = (summary: object, moreScript = ""): string =>
  `<script type="application/json" id="summary">${embedded(summary)}</script>
<script>\n${timelineDrawing}${timelineInput}${moreScript}</script>\n</body>\n</html>\n`;

/** JSON that no name in it breaks out of. */
export const embedded = (value: unknown): string => JSON.stringify(value).replaceAll("<", "\\u003c");

/** The duration class below which spans are left out. */
export function shortestShown({ durations }: TraceSurvey, maxSpans: number): number {
  let shown = 0;
  for (let index = durations.length - 1; index >= 0; index--) {
    shown += durations[index]!;
    if (shown > maxSpans) return index + 1;
  }
  return 0;
}

/** `[lane, start µs, duration µs, name, category, component, step or -1, attributes?]`; an instant lasts 0. */
function row(span: SpanRecord, worker: string, lane: number, survey: TraceSurvey, names: Texts): unknown[] {
  const { startMs, durationMs, name, category, step, devices, attributes } = span;
  const cells: unknown[] = [
    lane,
    Math.round((startMs - survey.fromMs) * 1000),
    Math.round(durationMs * 1000),
    names.of(name),
    SpanCategory.options.indexOf(category),
    survey.components.indexOf(componentOf(worker)),
    step ?? -1,
    names.of(worker),
  ];
  const extra = { ...(devices ? { devices: devices.join(" ") } : {}), ...attributes };
  if (Object.keys(extra).length > 0) cells.push(extra);
  return cells;
}

/** `[from lane, from µs, to lane, to µs]`: where one span sends and another receives. */
type Arrow = readonly [fromLane: number, fromUs: number, toLane: number, toUs: number];
type ArrowEnd = readonly [lane: number, us: number];

const maxArrows = 20_000;

/** Which spans an arrow joins; past the limit none is added. */
class Arrows {
  readonly list: Arrow[] = [];
  readonly #fromMs: number;
  readonly #tails = new Map<string, ArrowEnd>();
  readonly #heads = new Map<string, ArrowEnd>();

  constructor(fromMs: number) {
    this.#fromMs = fromMs;
  }

  add({ startMs, durationMs, flowOut, flowIn }: SpanRecord, lane: number): void {
    const us = (ms: number) => Math.round((ms - this.#fromMs) * 1000);
    if (flowOut !== undefined) this.#join(flowOut, this.#tails, this.#heads, [lane, us(startMs + durationMs)]);
    if (flowIn !== undefined) this.#join(flowIn, this.#heads, this.#tails, [lane, us(startMs)]);
  }

  #join(id: string, own: Map<string, ArrowEnd>, others: Map<string, ArrowEnd>, end: ArrowEnd): void {
    const other = others.get(id);
    if (!other) {
      if (own.size < maxArrows) own.set(id, end);
      return;
    }
    others.delete(id);
    const [tail, head] = own === this.#tails ? [end, other] : [other, end];
    if (this.list.length < maxArrows) this.list.push([...tail, ...head]);
  }
}

type Lane = {
  readonly group: "devices" | "workers";
  readonly label: string;
  readonly component: number;
  readonly sub: number;
};

/** Lanes as they turn out to be needed; the page puts them in order. */
class LaneTable {
  readonly list: Lane[] = [];
  readonly #indices = new Map<string, number>();
  readonly #occupancy = new Map<string, Lanes>();
  readonly #survey: TraceSurvey;

  constructor(survey: TraceSurvey) {
    this.#survey = survey;
    for (const device of survey.devices) this.#index("devices", device, 0);
    for (const worker of survey.workers) this.#index("workers", worker, 0);
  }

  /** The worker's lane, and those of the devices that the span occupies. */
  of(worker: string, span: SpanRecord): number[] {
    const lanes = [this.#place("workers", worker, span)];
    if (occupiesDevices(span) && span.durationMs > 0) {
      for (const device of span.devices ?? []) lanes.push(this.#place("devices", device, span));
    }
    return lanes;
  }

  #place(group: Lane["group"], label: string, { startMs, durationMs }: SpanRecord): number {
    if (durationMs === 0) return this.#index(group, label, 0);
    const key = `${group} ${label}`;
    let lanes = this.#occupancy.get(key);
    if (lanes === undefined) {
      lanes = new Lanes();
      this.#occupancy.set(key, lanes);
    }
    return this.#index(group, label, lanes.assign(startMs, durationMs));
  }

  #index(group: Lane["group"], label: string, sub: number): number {
    const key = `${group} ${label} ${sub}`;
    let index = this.#indices.get(key);
    if (index === undefined) {
      const component = group === "workers" ? this.#survey.components.indexOf(componentOf(label)) : -1;
      index = this.list.push({ group, label, component, sub }) - 1;
      this.#indices.set(key, index);
    }
    return index;
  }
}

/** `more`: CSS, and what is between lanes and the last line. */
export const timelineStart = (title: string, more: { readonly style: string; readonly below: string }): string =>
  `${pageHead(title, `${timelineStyle}${more.style}`)}<header>
  <h1>${escapeHtml(title)}</h1>
  <p id="facts"></p>
  <span class="grow"></span>
  <span id="range"></span>
  <button id="reset" title="shows everything (0)">all</button>
  <button id="theme" title="light or dark">◐</button>
</header>
<canvas id="overview" height="40"></canvas>
<div id="legend"></div>
<div id="scroll"><div id="space"><canvas id="lanes"></canvas></div></div>
${more.below}<footer>wheel zooms, drag moves, shift and drag selects a stretch, double click shows everything; keys: w s zoom, a d move, 0 everything</footer>
<div id="tip" hidden></div>
<noscript>This page draws with JavaScript; it fetches nothing.</noscript>
`;
