/** Metrics of one run: what its events say, and what the spans and counters of its processes say. */
import type { RunEvent, UtilisationShares } from "@treadle/contracts";
import { componentOf, type SpanBatch, type SpanCategory, type SpanRecord } from "@treadle/contracts";
import type { Counter } from "prom-client";
import { processCounters, type TrafficCounters } from "./process-counters.ts";

/** Metrics for a Prometheus server to scrape. */
export interface Exposition {
  /** The Prometheus text exposition, to be served as `contentType`. */
  exposition(): Promise<string>;
  readonly contentType: string;
}

export interface RunRegistry extends Exposition {
  /** Folds one event of the run in. */
  observe(event: RunEvent): void;
  /** Folds in what a process of the run has recorded since the last time. */
  observeSpans(batch: SpanBatch): void;
  /** Bytes over the runner's own links so far. */
  observeTraffic(traffic: TrafficCounters): void;
}

const activities: readonly (keyof UtilisationShares)[] = ["compute", "lockWait", "channelWait", "transfer", "idle"];

/** Seconds; waits and calls take from a millisecond to an hour. */
const buckets = [0.001, 0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600];

/**
 * A registry of its own for every run, so that two runs in one process stay apart. The client library is loaded with the
 * first one: worker processes never need it.
 */
export async function createRunRegistry(
  labels: { runId: string },
  options: { processMetrics?: boolean } = {},
): Promise<RunRegistry> {
  const { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } = await import("prom-client");
  const registry = new Registry();
  registry.setDefaultLabels({ run: labels.runId });
  if (options.processMetrics) collectDefaultMetrics({ register: registry });

  const common = (name: string, help: string, labelNames: readonly string[] = []) => ({
    name: `treadle_${name}`,
    help,
    labelNames,
    registers: [registry],
  });
  const info = new Gauge(common("run_info", "the run, always 1", ["workflow", "mode"]));
  const step = new Gauge(common("step", "last finished step"));
  const steps = new Gauge(common("steps", "steps asked for"));
  const metric = new Gauge(common("metric", "what the workflow reported for the last step", ["name"]));
  const accuracy = new Gauge(common("accuracy", "last evaluation"));
  const policyVersion = new Gauge(common("policy_version", "optimiser steps that the weights have taken"));
  const stepTime = new Histogram({
    ...common("step_seconds", "time of a step"),
    buckets: [0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 300, 900, 3600],
  });
  const tokens = new Counter(common("tokens_total", "tokens generated"));
  const checkpoints = new Counter(common("checkpoints_total", "checkpoints written"));
  const deaths = new Counter(
    common("worker_deaths_total", "worker processes that ended without being asked to", ["worker"]),
  );
  const restarts = new Counter(common("worker_restarts_total", "worker processes started again", ["worker"]));
  const depth = new Gauge(common("channel_depth", "items waiting in a channel", ["channel"]));
  const share = new Gauge(common("component_share", "share of time by activity", ["component", "activity"]));
  const histogram = (name: string, help: string, labelNames: readonly string[]) =>
    new Histogram({ ...common(name, help, labelNames), buckets });
  const calls = histogram("call_seconds", "time of a call of a worker method", ["component", "method"]);
  const lockWait = histogram("lock_wait_seconds", "waits for devices, onload included", ["component"]);
  const channelWait = histogram("channel_wait_seconds", "waits for a channel's items", ["component", "channel"]);
  const onload = histogram("onload_seconds", "moves of a component onto its devices", ["component"]);
  const offload = histogram("offload_seconds", "moves of a component off its devices", ["component"]);
  const queueing = histogram("action_queue_seconds", "waits of an action for its resources", ["action", "status"]);
  const execution = histogram("action_execution_seconds", "execution of an action", ["action", "status"]);
  const lost = new Counter(common("spans_dropped_total", "records that a full buffer gave up", ["worker"]));
  const cpu = new Counter(common("worker_cpu_seconds_total", "processor time of a worker", ["worker"]));
  const memory = new Gauge(common("worker_resident_memory_bytes", "resident memory of a worker", ["worker"]));
  const sent = new Counter(common("link_sent_bytes_total", "bytes written to links, shared memory apart", ["worker"]));
  const received = new Counter(common("link_received_bytes_total", "bytes read from links", ["worker"]));

  const growths = new Map<Counter, Map<string, number>>();
  /** Totals of a process begin anew with each of its incarnations; a counter only grows. */
  const grow = (counter: Counter, worker: string, total: number | undefined): void => {
    if (total === undefined || !Number.isFinite(total) || total < 0) return;
    const known = growths.get(counter) ?? new Map<string, number>();
    growths.set(counter, known);
    const before = known.get(worker) ?? 0;
    counter.inc({ worker }, total >= before ? total - before : total);
    known.set(worker, total);
  };
  const traffic = (worker: string, { sentBytes, receivedBytes }: Partial<TrafficCounters>): void => {
    grow(sent, worker, sentBytes);
    grow(received, worker, receivedBytes);
  };
  type Fold = (span: SpanRecord, component: string, seconds: number) => void;
  const folds: Partial<Record<SpanCategory, Fold>> = {
    call: ({ name }, component, seconds) => calls.observe({ component, method: name }, seconds),
    "lock-wait": (_, component, seconds) => lockWait.observe({ component }, seconds),
    "channel-wait": ({ name }, component, seconds) => channelWait.observe({ component, channel: name }, seconds),
    onload: (_, component, seconds) => onload.observe({ component }, seconds),
    offload: (_, component, seconds) => offload.observe({ component }, seconds),
    compute: ({ name, attributes }) => {
      const { queueingMs, executionMs, status } = attributes ?? {}; // an action has all three
      if (typeof queueingMs !== "number" || typeof executionMs !== "number" || typeof status !== "string") return;
      queueing.observe({ action: name, status }, queueingMs / 1000);
      execution.observe({ action: name, status }, executionMs / 1000);
    },
  };

  return {
    contentType: registry.contentType,
    exposition: () => registry.metrics(),
    observeTraffic: (counters) => traffic("runner", counters),
    observeSpans({ worker, dropped, records }) {
      if (dropped > 0) lost.inc({ worker }, dropped);
      const component = componentOf(worker);
      for (const record of records) {
        if (record.kind === "span") folds[record.category]?.(record, component, record.durationMs / 1000);
        else if (record.kind === "counter" && record.name === processCounters.process) {
          grow(cpu, worker, record.values["cpuSeconds"]);
          const { residentBytes } = record.values;
          if (residentBytes !== undefined) memory.set({ worker }, residentBytes);
        } else if (record.kind === "counter" && record.name === processCounters.links) traffic(worker, record.values);
      }
    },
    observe(event) {
      switch (event.type) {
        case "run-started":
          info.set({ workflow: event.workflow, mode: event.mode }, 1);
          steps.set(event.steps);
          break;
        case "step-finished":
          step.set(event.step);
          stepTime.observe(event.seconds);
          tokens.inc(event.tokens);
          if (event.policyVersion !== undefined) policyVersion.set(event.policyVersion);
          for (const [name, value] of Object.entries(event.metrics)) metric.set({ name }, value);
          break;
        case "evaluation":
          accuracy.set(event.accuracy);
          break;
        case "checkpoint":
          checkpoints.inc();
          break;
        case "worker-died":
          deaths.inc({ worker: event.worker });
          memory.remove({ worker: event.worker });
          break;
        case "worker-restarted":
          restarts.inc({ worker: event.worker });
          break;
        case "queue":
          depth.set({ channel: event.channel }, event.depth);
          break;
        case "utilisation":
          for (const [component, shares] of Object.entries(event.components)) {
            for (const activity of activities) share.set({ component, activity }, shares[activity]);
          }
          break;
      }
    },
  };
}
