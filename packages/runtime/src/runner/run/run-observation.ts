/** What a run shows to the outside while it goes on: metrics to a scraper, spans to a collector. Nothing unless asked for. */
import type { ObserveConfig, RunEvent, SpanBatch } from "@treadle/contracts";
import {
  createRunRegistry,
  isSpanExportWanted,
  type MetricsServer,
  openSpanExport,
  type SpanExport,
  serveMetrics,
  type TrafficCounters,
} from "@treadle/observe";
import type { Telemetry } from "../cluster/cluster-options.ts";

export interface RunObservation {
  /** what the processes of the run must record for it */
  readonly telemetry: Telemetry;
  event(event: RunEvent): void;
  spans(batch: SpanBatch): void;
  /**
   * Answers scrapers from here on. `traffic`: bytes over the runner's own links so far. Rejects with `metrics.unavailable`
   * when the address for metrics cannot be had.
   */
  serve(traffic: () => TrafficCounters): Promise<void>;
  close(): Promise<void>;
}

export type RunObservationPorts = {
  readonly runId: string;
  readonly onNotice: (text: string) => void;
};

const lastSpansMs = 5000;

export async function openRunObservation(
  config: ObserveConfig,
  ports: RunObservationPorts,
): Promise<RunObservation | undefined> {
  const { runId, onNotice } = ports;
  const isExporting = isSpanExportWanted(config.otlp);
  if (config.metrics === undefined && !isExporting) return undefined;
  const registry = config.metrics && (await createRunRegistry({ runId }, { processMetrics: true }));
  const exported: SpanExport | undefined = isExporting
    ? await openSpanExport({ runId, config: config.otlp, onNotice })
    : undefined;
  let server: MetricsServer | undefined;
  return {
    telemetry: { spanIds: exported !== undefined, counters: registry !== undefined },
    event(event) {
      registry?.observe(event);
      exported?.observe(event);
    },
    spans(batch) {
      registry?.observeSpans(batch);
      exported?.add(batch);
    },
    async serve(traffic) {
      if (registry === undefined || config.metrics === undefined) return;
      const exposition = () => {
        registry.observeTraffic(traffic());
        return registry.exposition();
      };
      server = await serveMetrics({ contentType: registry.contentType, exposition }, config.metrics);
      onNotice(`metrics are at ${server.url}`);
    },
    async close() {
      await exported?.close(lastSpansMs);
      await server?.close();
    },
  };
}
