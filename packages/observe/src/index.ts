export { type ActivityReport, reportActivity } from "./activity-report.ts";
export { toChromeTrace } from "./chrome-trace.ts";
export { EventWriter, parseEventLine } from "./event-file.ts";
export { boundConnections } from "./http-connections.ts";
export { Lanes } from "./lanes.ts";
export { LineTail, type TailedLine } from "./line-tail.ts";
export { createLogger, type Logger, type LogLevel, LogTail, openWorkerLog, parseLogLine, readLogLine } from "./logs.ts";
export { type MetricsRow, MetricsWriter, readMetrics } from "./metrics.ts";
export { type MetricsServer, parseMetricsAddress, serveMetrics } from "./metrics-server.ts";
export { createNodeRegistry, type NodeFacts, type NodeRegistry } from "./node-registry.ts";
export { inertNodeSpans, type NodeSpanOptions, type NodeSpans, openNodeSpans } from "./node-spans.ts";
export { openSpanExport, rootOf, type SpanExport, type SpanExportOptions } from "./otlp.ts";
export { isSpanExportWanted, type SpanSenderOptions } from "./otlp-sender.ts";
export { recordProcessCounters, type TrafficCounters } from "./process-counters.ts";
export { redactSecrets } from "./redact.ts";
export { createRunRegistry, type Exposition, type RunRegistry } from "./registry.ts";
export { writeTextFile } from "./text-output.ts";
export {
  acrossWorkers,
  quantile,
  Reduction,
  reduce,
  type Stopwatch,
  stepSeconds,
  TimerReport,
  Timers,
} from "./timers.ts";
export { readTrace, TraceWriter } from "./trace-file.ts";
export { type TraceColumns, traceColumns, traceLine } from "./trace-line.ts";
export { durationClass, occupiesDevices, surveyTrace, type TraceSurvey } from "./trace-survey.ts";
export {
  createTracer,
  type OpenSpan,
  type Span,
  type SpanOptions,
  type Tracer,
  type TracerOptions,
  traceNow,
} from "./tracer.ts";
export type { CreateTracker, CreateTrackerContext, OwnTracker } from "./trackers/module-tracker.ts";
export type { TrackedEnd, TrackedRow } from "./trackers/tracker-feed.ts";
export { Trackers } from "./trackers/trackers.ts";
export { type UtilisationWindow, utilisation } from "./utilisation.ts";
