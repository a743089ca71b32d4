/**
 * Trace files as trace-event JSON, which https://ui.perfetto.dev and chrome://tracing load: a process for every
 * component, a thread for every rank, and one process `devices` with a thread for every device, whose `switch` marks
 * are the moments when another worker's state is loaded. Two passes, one batch in memory.
 */

import { componentOf, type InstantRecord, type SpanRecord } from "@treadle/contracts";
import { Lanes } from "./lanes.ts";
import { writeTextFile } from "./text-output.ts";
import { readTrace } from "./trace-file.ts";
import { occupiesDevices, surveyTrace, type TraceSurvey } from "./trace-survey.ts";

type TraceEvent = Readonly<Record<string, unknown>>;

/** Returns how many events were written. */
export async function toChromeTrace(files: readonly string[], outputPath: string): Promise<{ numEvents: number }> {
  const survey = await surveyTrace(files);
  let numEvents = 0;
  async function* text() {
    yield '{"displayTimeUnit":"ms","traceEvents":[\n';
    for await (const event of traceEvents(files, survey))
      yield `${numEvents++ === 0 ? "" : ",\n"}${JSON.stringify(event)}`;
    yield `\n],"otherData":{"droppedRecords":${survey.numDropped}}}\n`;
  }
  await writeTextFile(outputPath, text());
  return { numEvents };
}

/** threads of one rank or device, when its spans overlap: its number times this, plus the lane */
const lanesEach = 100;

async function* traceEvents(files: readonly string[], survey: TraceSurvey): AsyncGenerator<TraceEvent> {
  const devicesPid = 1;
  const pidOf = new Map(survey.components.map((name, index) => [name, index + 2]));
  const threads = new Threads();

  if (survey.devices.length > 0) yield* processNames(devicesPid, "devices", 0);
  for (const [name, pid] of pidOf) yield* processNames(pid, name, pid);

  const micros = (ms: number) => Math.round((ms - survey.fromMs) * 1e6) / 1e3;
  const indexInComponent = new Map(survey.workers.map((worker) => [worker, rankOf(worker, survey.workers)]));

  for await (const { worker, records } of readTrace(files)) {
    const pid = pidOf.get(componentOf(worker))!;
    const rank = indexInComponent.get(worker)!;
    for (const record of records) {
      const ts = micros(record.startMs);
      if (record.kind === "counter") {
        yield { ph: "C", name: `${worker} ${record.name}`, pid, tid: rank * lanesEach, ts, args: record.values };
        continue;
      }
      const { name, category: cat } = record;
      if (record.kind === "instant") {
        const thread = threads.of(pid, rank, worker, 0);
        yield* thread.names;
        yield { ph: "i", s: "t", name, cat, pid, tid: thread.tid, ts, args: argsOf(record) };
        continue;
      }
      const thread = threads.place(pid, rank, worker, record);
      yield* thread.names;
      const dur = Math.round(record.durationMs * 1e6) / 1e3;
      const { tid } = thread;
      yield { ph: "X", name, cat, pid, tid, ts, dur, args: argsOf(record) };
      // An arrow leaves where its span ends and arrives where the other one begins; `bp: e` ties it to that span.
      if (record.flowOut !== undefined) yield { ph: "s", ...flow(record.flowOut), pid, tid, ts: ts + dur * 0.999 };
      if (record.flowIn !== undefined) yield { ph: "f", bp: "e", ...flow(record.flowIn), pid, tid, ts };
      if (!occupiesDevices(record)) continue;
      for (const device of record.devices ?? []) {
        const lane = threads.place(devicesPid, survey.devices.indexOf(device), device, record);
        yield* lane.names;
        const args = { worker, ...argsOf(record) };
        yield { ph: "X", name: `${worker} ${name}`, cat, pid: devicesPid, tid: lane.tid, ts, dur, args };
        if (cat !== "onload") continue;
        yield {
          ph: "i",
          s: "t",
          name: `switch to ${worker}`,
          cat: "switch",
          pid: devicesPid,
          tid: lane.tid,
          ts,
          args: {},
        };
      }
    }
  }
}

/** The threads that have been seen, with lanes where spans of one rank or device overlap. */
class Threads {
  readonly #lanes = new Map<string, Lanes>();
  readonly #named = new Set<string>();

  place(pid: number, index: number, name: string, { startMs, durationMs }: SpanRecord) {
    const key = `${pid} ${index}`;
    let lanes = this.#lanes.get(key);
    if (lanes === undefined) {
      lanes = new Lanes();
      this.#lanes.set(key, lanes);
    }
    return this.of(pid, index, name, Math.min(lanesEach - 1, lanes.assign(startMs, durationMs)));
  }

  of(pid: number, index: number, name: string, lane: number): { tid: number; names: TraceEvent[] } {
    const tid = index * lanesEach + lane + 1;
    const key = `${pid} ${tid}`;
    if (this.#named.has(key)) return { tid, names: [] };
    this.#named.add(key);
    const label = lane === 0 ? name : `${name} · ${lane + 1}`;
    return {
      tid,
      names: [
        { ph: "M", name: "thread_name", pid, tid, args: { name: label } },
        { ph: "M", name: "thread_sort_index", pid, tid, args: { sort_index: tid } },
      ],
    };
  }
}

function* processNames(pid: number, name: string, order: number): Generator<TraceEvent> {
  yield { ph: "M", name: "process_name", pid, args: { name } };
  yield { ph: "M", name: "process_sort_index", pid, args: { sort_index: order } };
}

function rankOf(worker: string, workers: readonly string[]): number {
  const component = componentOf(worker);
  return workers.filter((each) => componentOf(each) === component).indexOf(worker);
}

function argsOf({ step, devices, attributes }: SpanRecord | InstantRecord): Record<string, unknown> {
  return {
    ...(step === undefined ? {} : { step }),
    ...(devices === undefined ? {} : { devices: devices.join(" ") }),
    ...attributes,
  };
}

/** Arrows are joined by a number: FNV-1a of the id. */
function flow(id: string): TraceEvent {
  let hash = 0x811c9dc5;
  for (let i = 0; i < id.length; i++) hash = Math.imul(hash ^ id.charCodeAt(i), 0x01000193);
  return { name: "flow", cat: "flow", id: hash >>> 0 };
}
