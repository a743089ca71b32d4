import { join } from "node:path";
import type { RunEvent } from "@treadle/contracts";
import { rootOf } from "@treadle/observe";
import { runWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { until } from "../support/cluster.ts";
import { type CollectedSpan, startCollector } from "../support/collector.ts";
import { projectRoot } from "../support/project.ts";
import { traceText } from "../support/trace-text.ts";
import { temporaryRuns } from "../support/treadle.ts";

/** Four processes start first, on a machine that others use. */
const waitMs = 120_000;

test("a run is scraped while it goes on, and its spans are whole traces, one a step, over all its processes", async () => {
  await using runs = await temporaryRuns();
  using collector = await startCollector();
  const { spans } = collector;
  const events: RunEvent[] = [];
  const stop = new AbortController();
  try {
    const run = runWorkflow({
      workflow: join(projectRoot, "test/support/workflows/ledger"),
      overrides: ["steps=100000", "observe.metrics.address=0", `observe.otlp.endpoint=${collector.endpoint}`],
      runsRoot: runs.path,
      projectRoot,
      onEvent: (event) => events.push(event),
      stop: stop.signal,
    });
    const address = /metrics are at (\S+)/;
    const isNotice = (event: RunEvent) => (event.type === "log" ? address.exec(event.line)?.[1] : undefined);
    const url = await until(() => events.map(isNotice).find(Boolean), "the address of the metrics", waitMs);
    for (const [metric, ...labels] of [
      ["treadle_step_seconds_count"],
      ["treadle_call_seconds_count", 'component="trainer"', 'method="train"'],
      ["treadle_channel_wait_seconds_count", 'component="trainer"', 'channel="results"'],
      ["treadle_worker_cpu_seconds_total", 'worker="maker/0"'],
      ["treadle_worker_resident_memory_bytes", 'worker="maker/1"'],
      ["treadle_link_received_bytes_total", 'worker="trainer/1"'],
      ["treadle_link_sent_bytes_total", 'worker="runner"'],
    ] as const) {
      const isMet = (line: string) =>
        line.startsWith(`${metric}{`) && labels.every((label) => line.includes(label)) && !line.endsWith(" 0");
      await until(
        async () => (await (await fetch(url)).text()).split("\n").some(isMet),
        `a scrape with '${metric}' of ${labels.join()}`,
        waitMs,
      );
    }
    stop.abort();
    const { summary } = await run;

    const runId = summary.runId;
    const steps = spans.filter(({ name }) => name === "step");
    expect(steps.map(({ traceId }) => traceId).sort()).toEqual(
      steps.map((_, i) => rootOf(runId, i + 1).traceId).sort(),
    );
    expect(steps).toHaveLength(summary.steps);
    expect(spans.map(({ name }) => name)).toContain("run ledger");
    const byId = new Map(spans.map((span) => [span.spanId, span]));
    expect(byId.size).toBe(spans.length);
    for (const { parentSpanId, traceId, name } of spans) {
      if (parentSpanId !== undefined) expect(byId.get(parentSpanId)?.traceId, name).toBe(traceId);
    }
    // The runner asks a maker to pull, which asks a trainer, in its own process.
    const parentOf = (span: CollectedSpan | undefined) => byId.get(span?.parentSpanId ?? "");
    const asked = spans.find((span) => parentOf(span)?.name.startsWith("trainer/"));
    expect(parentOf(parentOf(asked))?.name).toBe("pull");
    expect(parentOf(parentOf(parentOf(asked)))?.name).toBe("step");
    await expect(fetch(url)).rejects.toThrow(); // S4
    // What `treadle trace` draws and what was sent are the same spans.
    const drawn = (await traceText(join(runs.path, runId, "trace.jsonl"))).match(/"kind":"span"/g) ?? [];
    expect(spans.length).toBe(drawn.length + steps.length + 1);
  } finally {
    stop.abort();
  }
}, 600_000);
