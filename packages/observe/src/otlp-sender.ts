/**
 * The way to an OpenTelemetry collector: OTLP over HTTP, as JSON.
 *
 * Owner of: the queue of spans that wait to be sent, which is bounded, and the one notice that sending fails (OT3 in
 * `otlp.ts`).
 */
import type { HrTime, Attributes as OtelAttributes, SpanContext } from "@opentelemetry/api";
import type { Resource } from "@opentelemetry/resources";
import type { BatchSpanProcessor, ReadableSpan } from "@opentelemetry/sdk-trace";
import type { OtlpConfig } from "@treadle/contracts";
import { componentOf } from "@treadle/contracts";
import { redactSecrets } from "./redact.ts";

export interface SpanSender {
  send(span: SpanToSend): void;
  /** Who a span is of: `rollout/0`, `runner`, `node-agent/a`, and in which run, if in one. */
  resource(worker: string, pid: number, runId: string | undefined): Resource;
  /** Sends what is left, for so long; then whatever remains is given up. */
  close(limitMs: number): Promise<void>;
}

export type SpanSenderOptions = {
  readonly config: OtlpConfig | undefined;
  /** told once when sending begins to fail, and once when it works again */
  readonly onNotice: (text: string) => void;
};

export type SpanToSend = {
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

const maxQueued = 16_384;
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
export async function openSpanSender(options: SpanSenderOptions): Promise<SpanSender> {
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
    // OT3: a failure is told here, so the library need not tell it to whoever watches all of the process.
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
  const known = new Map<string, Resource>();
  const resourceOf = (worker: string, pid: number, runId: string | undefined): Resource =>
    resources
      .resourceFromAttributes({
        "service.name": process.env["OTEL_SERVICE_NAME"] || componentOf(worker),
        "service.namespace": "treadle",
        "service.instance.id": worker,
        "process.pid": pid,
        ...(runId === undefined ? {} : { "treadle.run.id": runId }),
      })
      .merge(environment);
  return {
    send: (span) => processor.onEnd(readable(span)),
    resource(worker, pid, runId) {
      const key = `${worker} ${pid} ${runId ?? ""}`;
      const resource = known.get(key) ?? resourceOf(worker, pid, runId);
      known.set(key, resource);
      return resource;
    },
    close: (limitMs) => closeWithin(processor, limitMs),
  };
}

async function closeWithin(processor: BatchSpanProcessor, limitMs: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const over = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, limitMs);
  });
  const sent = processor.shutdown().catch(() => {}); // told by the exporter already
  await Promise.race([sent, over]);
  clearTimeout(timer);
}

function readable({ context, parent, startMs, durationMs, failure, ...rest }: SpanToSend): ReadableSpan {
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
