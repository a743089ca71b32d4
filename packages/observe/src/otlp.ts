/**
 * The spans of a run as a collector of OpenTelemetry gets them.
 *
 * OT1 a step is a trace; its root is the runner's span of the step, and what a worker does in it is below the call that
 *    asked for it, in whatever process that was made. What belongs to no step is in the trace of the run.
 * OT2 ids of traces and their roots follow from run and step alone, so that processes need not agree on them, and a run
 *    that is resumed goes on in its trace.
 * OT3 a collector that is slow or away costs spans, never the run.
 */
import { createHash } from "node:crypto";
import type { Attributes as OtelAttributes, SpanContext } from "@opentelemetry/api";
import type { Resource } from "@opentelemetry/resources";
import type { InstantRecord, RunEvent, SpanBatch, SpanRecord } from "@treadle/contracts";
import { openSpanSender, type SpanSender, type SpanSenderOptions, type SpanToSend } from "./otlp-sender.ts";
import { redactSecrets } from "./redact.ts";

export interface SpanExport {
  add(batch: SpanBatch): void;
  /** The runner's own spans, which frame the others, follow from its events. */
  observe(event: RunEvent): void;
  /** Sends what is left, for so long; then whatever remains is given up. */
  close(limitMs: number): Promise<void>;
}

export type SpanExportOptions = SpanSenderOptions & { readonly runId: string };

const maxTextLength = 1024;
const sampled = 1;

export async function openSpanExport({ runId, ...options }: SpanExportOptions): Promise<SpanExport> {
  const sender = await openSpanSender(options);
  const spans = new OtlpSpans(runId, sender);
  return {
    add: (batch) => spans.add(batch),
    observe: (event) => spans.observe(event),
    close: (limitMs) => sender.close(limitMs),
  };
}

class OtlpSpans {
  readonly #runId: string;
  readonly #sender: SpanSender;
  readonly #openSteps = new Map<number, number>();
  #startedMs = Date.now();
  #workflow = "";

  constructor(runId: string, sender: SpanSender) {
    this.#runId = runId;
    this.#sender = sender;
  }

  add({ worker, pid, records }: SpanBatch): void {
    sendRecords(this.#sender, { worker, pid, records }, this.#runId, (step) => rootOf(this.#runId, step));
  }

  observe(event: RunEvent): void {
    switch (event.type) {
      case "run-started":
        this.#startedMs = event.atMs;
        this.#workflow = event.workflow;
        break;
      case "step-started":
        this.#openSteps.set(event.step, event.atMs);
        break;
      case "step-finished":
        this.#endRoot(event.step, event.atMs, undefined, { "treadle.tokens": event.tokens });
        break;
      case "run-finished":
        this.#endRoot(undefined, event.atMs);
        break;
      case "run-failed": {
        const failure = redactSecrets(`${event.error.code}: ${event.error.message}`).slice(0, maxTextLength);
        for (const step of [...this.#openSteps.keys()]) this.#endRoot(step, event.atMs, failure);
        this.#endRoot(undefined, event.atMs, failure);
        break;
      }
    }
  }

  #endRoot(step: number | undefined, endMs: number, failure?: string, attributes: OtelAttributes = {}): void {
    const startMs = step === undefined ? this.#startedMs : (this.#openSteps.get(step) ?? endMs);
    if (step !== undefined) this.#openSteps.delete(step);
    const run = rootOf(this.#runId, undefined);
    this.#sender.send({
      name: step === undefined ? `run ${this.#workflow}` : "step",
      context: rootOf(this.#runId, step),
      resource: this.#sender.resource("runner", process.pid, this.#runId),
      startMs,
      durationMs: Math.max(0, endMs - startMs),
      attributes: { ...(step === undefined ? {} : { "treadle.step": step }), ...attributes },
      failure,
      links: step === undefined ? [] : [{ context: run }],
    });
  }
}

/** Sends what a process has recorded in a run, or in no run; `rootIn`: the span above those that have no other. */
export function sendRecords(
  sender: SpanSender,
  { worker, pid, records }: Pick<SpanBatch, "worker" | "pid" | "records">,
  runId: string | undefined,
  rootIn: (step: number | undefined) => SpanContext,
): void {
  const resource = sender.resource(worker, pid, runId);
  for (const record of records) {
    if (record.kind !== "counter") sender.send(describe(worker, resource, record, rootIn(record.step)));
  }
}

function describe(
  worker: string,
  resource: Resource,
  record: SpanRecord | InstantRecord,
  root: SpanContext,
): SpanToSend {
  const own = record.kind === "span" ? record.id : undefined;
  // What has no id of its own gets one that follows from what it is.
  const spanId = own ?? hex(`${worker} ${record.name} ${record.startMs}`, 16);
  const devices = record.devices ?? [];
  return {
    name: record.name,
    context: { ...root, spanId },
    parent: { ...root, spanId: record.parent ?? root.spanId },
    resource,
    startMs: record.startMs,
    durationMs: record.kind === "span" ? record.durationMs : 0,
    attributes: {
      ...textAttributes(record.attributes),
      "treadle.category": record.category,
      ...(record.step === undefined ? {} : { "treadle.step": record.step }),
      ...(devices.length === 0 ? {} : { "treadle.devices": [...devices] }),
    },
    failure: record.category === "failure" ? record.name : undefined,
    links: [],
  };
}

/** OT2. */
export function rootOf(runId: string, step: number | undefined): SpanContext {
  const name = step === undefined ? runId : `${runId}/${step}`;
  return { traceId: hex(`trace ${name}`, 32), spanId: hex(`root ${name}`, 16), traceFlags: sampled };
}

const hex = (text: string, length: number): string => createHash("sha256").update(text).digest("hex").slice(0, length);

function textAttributes(attributes: SpanRecord["attributes"] = {}): OtelAttributes {
  return Object.fromEntries(
    Object.entries(attributes).flatMap(([name, value]) => {
      if (value === null) return [];
      return [[name, typeof value === "string" ? redactSecrets(value).slice(0, maxTextLength) : value]];
    }),
  );
}
