/**
 * Sends the spans of a run to an OpenTelemetry collector: OTLP over HTTP, as JSON.
 *
 * Owner of: the queue of spans that wait to be sent, which is bounded, and the one notice that sending fails.
 *
 * O1 a step is a trace; its root is the runner's span of the step, and what a worker does in it is below the call that
 *    asked for it, in whatever process that was made. What belongs to no step is in the trace of the run.
 * O2 ids of traces and their roots follow from run and step alone, so that processes need not agree on them, and a run
 *    that is resumed goes on in its trace.
 * O3 a collector that is slow or away costs spans, never the run.
 */
import { createHash } from "node:crypto";
import type { HrTime, Attributes as OtelAttributes, SpanContext } from "@opentelemetry/api";
import type { Resource } from "@opentelemetry/resources";
import type { BatchSpanProcessor, ReadableSpan } from "@opentelemetry/sdk-trace";
import type { OtlpConfig, RunEvent } from "@treadle/contracts";
import { redactSecrets } from "./redact.ts";
import { componentOf, type InstantRecord, type SpanBatch, type SpanRecord } from "./span-record.ts";

export interface SpanExport {
  add(batch: SpanBatch): void;
  /** The runner's own spans, which frame the others, follow from its events. */
  observe(event: RunEvent): void;
  /** Sends what is left, for so long; then whatever remains is given up. */
  close(limitMs: number): Promise<void>;
}

export type SpanExportOptions = {
  readonly runId: string;
  readonly config: OtlpConfig | undefined;
  /** told once when sending begins to fail, and once when it works again */
  readonly onNotice: (text: string) => void;
};

const maxQueued = 16_384;
const maxTextLength = 1024;
const sampled = 1;
const kindInternal = 0;
const [statusUnset, statusError] = [0, 2];

/** The endpoint comes from the configuration or from OTEL_EXPORTER_OTLP_ENDPOINT and its kin. */
export function isSpanExportWanted(config: OtlpConfig | undefined, env: NodeJS.ProcessEnv = process.env): boolean {
  if (env["OTEL_SDK_DISABLED"]?.toLowerCase() === "true") return false;
  const inEnvironment = env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] || env["OTEL_EXPORTER_OTLP_ENDPOINT"];
  return config?.endpoint !== undefined || Boolean(inEnvironment);
}

/**
 * `OTEL_EXPORTER_OTLP_HEADERS` (secrets have no place in a configuration), `…_TIMEOUT`, `…_COMPRESSION`, `…_CERTIFICATE`,
 * `OTEL_BSP_*` and `OTEL_RESOURCE_ATTRIBUTES` count as everywhere.
 */
export async function openSpanExport(options: SpanExportOptions): Promise<SpanExport> {
  const [{ OTLPTraceExporter }, { BatchSpanProcessor }, resources] = await Promise.all([
    import("@opentelemetry/exporter-trace-otlp-http"),
    import("@opentelemetry/sdk-trace"),
    import("@opentelemetry/resources"),
  ]);
  const endpoint = options.config?.endpoint;
  const exporter = new OTLPTraceExporter(
    endpoint === undefined ? {} : { url: `${endpoint.replace(/\/+$/, "")}/v1/traces` },
  );
  let isFailing = false;
  const watched: ConstructorParameters<typeof BatchSpanProcessor>[0]["exporter"] = {
    // O3: a failure is told here, so the library need not tell it to whoever watches all of the process.
    export: (spans, done) =>
      exporter.export(spans, (result) => {
        const hasFailed = result.code !== 0;
        if (hasFailed !== isFailing) {
          const why = redactSecrets(result.error?.message ?? "no reason given");
          options.onNotice(hasFailed ? `spans cannot be exported, and are lost: ${why}` : "spans are exported again");
        }
        isFailing = hasFailed;
        done({ code: 0 });
      }),
    forceFlush: () => exporter.forceFlush(),
    shutdown: () => exporter.shutdown(),
  };
  const processor = new BatchSpanProcessor({ exporter: watched, maxQueueSize: maxQueued });
  const environment = resources.detectResources({ detectors: [resources.envDetector] });
  const resourceOf = (worker: string, pid: number): Resource =>
    resources
      .resourceFromAttributes({
        "service.name": process.env["OTEL_SERVICE_NAME"] || componentOf(worker),
        "service.namespace": "treadle",
        "service.instance.id": worker,
        "process.pid": pid,
        "treadle.run.id": options.runId,
      })
      .merge(environment);
  return new OtlpSpans(options.runId, processor, resourceOf);
}

class OtlpSpans implements SpanExport {
  readonly #runId: string;
  readonly #processor: BatchSpanProcessor;
  readonly #resourceOf: (worker: string, pid: number) => Resource;
  readonly #resources = new Map<string, Resource>();
  readonly #openSteps = new Map<number, number>();
  #startedMs = Date.now();
  #workflow = "";

  constructor(runId: string, processor: BatchSpanProcessor, resourceOf: (worker: string, pid: number) => Resource) {
    this.#runId = runId;
    this.#processor = processor;
    this.#resourceOf = resourceOf;
  }

  add({ worker, pid, records }: SpanBatch): void {
    const resource = this.#resource(worker, pid);
    for (const record of records) {
      if (record.kind !== "counter") this.#processor.onEnd(this.#spanOf(worker, resource, record));
    }
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

  async close(limitMs: number): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    const over = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, limitMs);
    });
    const sent = this.#processor.shutdown().catch(() => {}); // told by the exporter already
    await Promise.race([sent, over]);
    clearTimeout(timer);
  }

  #endRoot(step: number | undefined, endMs: number, failure?: string, attributes: OtelAttributes = {}): void {
    const startMs = step === undefined ? this.#startedMs : (this.#openSteps.get(step) ?? endMs);
    if (step !== undefined) this.#openSteps.delete(step);
    const run = rootOf(this.#runId, undefined);
    this.#processor.onEnd(
      readable({
        name: step === undefined ? `run ${this.#workflow}` : "step",
        context: rootOf(this.#runId, step),
        resource: this.#resource("runner", process.pid),
        startMs,
        durationMs: Math.max(0, endMs - startMs),
        attributes: { ...(step === undefined ? {} : { "treadle.step": step }), ...attributes },
        failure,
        links: step === undefined ? [] : [{ context: run }],
      }),
    );
  }

  #spanOf(worker: string, resource: Resource, record: SpanRecord | InstantRecord): ReadableSpan {
    const root = rootOf(this.#runId, record.step);
    const own = record.kind === "span" ? record.id : undefined;
    // What has no id of its own gets one that follows from what it is.
    const spanId = own ?? hex(`${worker} ${record.name} ${record.startMs}`, 16);
    const devices = record.devices ?? [];
    const isFailure = record.category === "failure";
    return readable({
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
      failure: isFailure ? record.name : undefined,
      links: [],
    });
  }

  #resource(worker: string, pid: number): Resource {
    const key = `${worker} ${pid}`;
    const known = this.#resources.get(key) ?? this.#resourceOf(worker, pid);
    this.#resources.set(key, known);
    return known;
  }
}

/** O2. */
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

type Described = {
  readonly name: string;
  readonly context: SpanContext;
  readonly parent?: SpanContext;
  readonly resource: Resource;
  readonly startMs: number;
  readonly durationMs: number;
  readonly attributes: OtelAttributes;
  readonly failure: string | undefined;
  readonly links: ReadableSpan["links"];
};

function readable({ context, parent, startMs, durationMs, failure, ...rest }: Described): ReadableSpan {
  return {
    ...rest,
    kind: kindInternal,
    spanContext: () => context,
    ...(parent === undefined ? {} : { parentSpanContext: parent }),
    startTime: hrTime(startMs),
    endTime: hrTime(startMs + durationMs),
    duration: hrTime(durationMs),
    status: failure === undefined ? { code: statusUnset } : { code: statusError, message: failure },
    events: [],
    ended: true,
    instrumentationScope: { name: "treadle" },
    droppedAttributesCount: 0,
    droppedEventsCount: 0,
    droppedLinksCount: 0,
  };
}

/** Seconds and nanoseconds. */
function hrTime(ms: number): HrTime {
  const seconds = Math.trunc(ms / 1000);
  return [seconds, Math.round((ms - seconds * 1000) * 1e6)];
}
