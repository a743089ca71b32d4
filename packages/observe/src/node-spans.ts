/**
 * The spans of one node agent as a collector of OpenTelemetry gets them.
 *
 * Owner of: what the agent has recorded and not yet sent, which is bounded, and the root of its own trace.
 *
 * What an agent does for a run is in the trace of that run, below its root (OT1 in `otlp.ts`), whichever agent does it and
 * wherever the runner is; what it does for itself, such as joining and draining, is in a trace of its own.
 */
import { randomUUID } from "node:crypto";
import type { Attributes, SpanCategory } from "@treadle/contracts";
import { rootOf, sendRecords } from "./otlp.ts";
import { openSpanSender, type SpanSenderOptions } from "./otlp-sender.ts";
import { createTracer, inertSpan, type Span, type Tracer, traceNow } from "./tracer.ts";

export type NodeSpanOptions = {
  /** whose trace it is in; absent: the agent's own */
  readonly run?: string | undefined;
  readonly attributes?: Attributes | undefined;
};

export interface NodeSpans {
  span(name: string, category: SpanCategory, options?: NodeSpanOptions): Span;
  /** Ends the agent's own trace and sends what is left, for so long. */
  close(limitMs: number, failure?: string): Promise<void>;
}

/** For agents whose spans nobody wants. */
export const inertNodeSpans: NodeSpans = { span: () => inertSpan, close: async () => {} };

const shipIntervalMs = 1000;

export async function openNodeSpans(node: string, options: SpanSenderOptions): Promise<NodeSpans> {
  const sender = await openSpanSender(options);
  const worker = `node-agent/${node}`;
  const own = rootOf(`node ${node} ${randomUUID()}`, undefined);
  const startMs = traceNow();
  /** a run, or undefined for the agent itself, to what it has recorded there */
  const tracers = new Map<string | undefined, Tracer>();
  const ship = (): void => {
    for (const [run, tracer] of tracers) {
      const batch = tracer.drain();
      sendRecords(sender, batch, run, () => (run === undefined ? own : rootOf(run, undefined)));
      if (batch.records.length === 0 && tracer.open().length === 0) tracers.delete(run);
    }
  };
  const timer = setInterval(ship, shipIntervalMs);
  timer.unref();
  return {
    span(name, category, { run, attributes } = {}) {
      const tracer = tracers.get(run) ?? createTracer({ worker, spanIds: true });
      tracers.set(run, tracer);
      return tracer.span(name, category, { attributes });
    },
    async close(limitMs, failure) {
      clearInterval(timer);
      ship();
      sender.send({
        name: `node ${node}`,
        context: own,
        resource: sender.resource(worker, process.pid, undefined),
        startMs,
        durationMs: traceNow() - startMs,
        attributes: {},
        failure,
        links: [],
      });
      await sender.close(limitMs);
    },
  };
}
