import { once } from "node:events";
import { createServer, type IncomingHttpHeaders, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { afterEach, beforeEach, expect, it } from "vitest";
import { z } from "zod";
import { createTracer, isSpanExportWanted, openSpanExport, rootOf } from "../src/index.ts";

const Value = z.object({ stringValue: z.string().optional(), intValue: z.union([z.number(), z.string()]).optional() });
const Attribute = z.object({ key: z.string(), value: Value });
const Span = z.object({
  traceId: z.string(),
  spanId: z.string(),
  parentSpanId: z.string().optional(),
  name: z.string(),
  startTimeUnixNano: z.string(),
  endTimeUnixNano: z.string(),
  attributes: z.array(Attribute),
  status: z.object({ code: z.number(), message: z.string().optional() }),
});
/** OTLP's ExportTraceServiceRequest, as JSON. */
const ExportRequest = z.object({
  resourceSpans: z.array(
    z.object({
      resource: z.object({ attributes: z.array(Attribute) }),
      scopeSpans: z.array(z.object({ spans: z.array(Span) })),
    }),
  ),
});
type Received = z.infer<typeof Span> & { readonly service: string | undefined };

/** A collector that keeps what it is sent. */
let collector: Server;
let received: Received[];
let headers: IncomingHttpHeaders[];
let answer: number;
let endpoint: string;

beforeEach(async () => {
  [received, headers, answer] = [[], [], 200];
  collector = createServer(async (request, response) => {
    const body = await text(request);
    headers.push({ ...request.headers, ":path": request.url });
    if (answer === 200) {
      for (const { resource, scopeSpans } of ExportRequest.parse(JSON.parse(body)).resourceSpans) {
        const service = resource.attributes.find(({ key }) => key === "service.name")?.value.stringValue;
        received.push(...scopeSpans.flatMap(({ spans }) => spans.map((span) => ({ ...span, service }))));
      }
    }
    response.writeHead(answer, { "content-type": "application/json" }).end("{}");
  }).listen(0, "127.0.0.1");
  await once(collector, "listening");
  endpoint = `http://127.0.0.1:${(collector.address() as AddressInfo).port}`;
});
afterEach(() => {
  collector.closeAllConnections();
  collector.close();
});

const named = (name: string): Received => {
  const found = received.find((span) => span.name === name);
  if (found === undefined) throw new Error(`no span '${name}' among ${received.map((span) => span.name).join(", ")}`);
  return found;
};

it("OT1, OT2: a step is a trace, and a call in another process is below the span that made it", async () => {
  const exported = await openSpanExport({ runId: "run-1", config: { endpoint }, onNotice: () => {} });
  exported.observe({
    type: "run-started",
    atMs: 1000,
    runId: "run-1",
    workflow: "w",
    mode: "temporal",
    steps: 1,
    folder: "",
  });
  exported.observe({ type: "step-started", atMs: 1500, step: 1 });
  let current: string | undefined;
  const caller = createTracer({ worker: "rollout/0", spanIds: true, parent: () => current });
  const callee = createTracer({ worker: "actor/0", spanIds: true });
  caller.setStep(1);
  callee.setStep(1);
  const call = caller.span("pull", "call");
  current = call.id;
  const transfer = caller.span("actor/0.weights", "transfer");
  callee.span("weights", "call", { parent: transfer.id }).end();
  transfer.end();
  call.end();
  caller.complete("setup", "onload", 1200.25, 1300.5, { step: undefined });
  exported.add(caller.drain());
  exported.add(callee.drain());
  exported.observe({ type: "step-finished", atMs: 2500, step: 1, seconds: 1, metrics: {}, tokens: 9 });
  exported.observe({ type: "run-failed", atMs: 3000, error: { code: "call.failed", message: "boom" } });
  await exported.close(50_000);

  const root = named("step");
  expect(root).toMatchObject({ ...rootIds(1), startTimeUnixNano: "1500000000", endTimeUnixNano: "2500000000" });
  expect(root.parentSpanId).toBeUndefined();
  expect(named("pull")).toMatchObject({ traceId: root.traceId, parentSpanId: root.spanId, service: "rollout" });
  expect(named("actor/0.weights")).toMatchObject({ traceId: root.traceId, parentSpanId: named("pull").spanId });
  expect(named("weights")).toMatchObject({
    traceId: root.traceId,
    parentSpanId: named("actor/0.weights").spanId,
    service: "actor",
  });
  expect(named("run w")).toMatchObject({ ...rootIds(undefined), status: { code: 2, message: "call.failed: boom" } });
  expect(new Set(received.map(({ spanId }) => spanId)).size).toBe(received.length);
  expect(headers[0]?.[":path"]).toBe("/v1/traces");
});

const rootIds = (step: number | undefined) => {
  const { traceId, spanId } = rootOf("run-1", step);
  return { traceId, spanId };
};

it("no secret leaves in an attribute, and headers come from the environment", async () => {
  process.env["OTEL_EXPORTER_OTLP_HEADERS"] = "x-tenant=blue";
  try {
    const exported = await openSpanExport({ runId: "r", config: { endpoint }, onNotice: () => {} });
    const tracer = createTracer({ worker: "tool/0", spanIds: true });
    tracer.span("fetch", "compute", { attributes: { url: "nats://me:hunter2@host", note: "password=hunter2" } }).end();
    exported.add(tracer.drain());
    await exported.close(50_000);
  } finally {
    delete process.env["OTEL_EXPORTER_OTLP_HEADERS"];
  }
  expect(headers[0]?.["x-tenant"]).toBe("blue");
  expect(JSON.stringify(named("fetch"))).not.toContain("hunter2");
});

it("OT3: a collector that refuses costs the spans and one notice", async () => {
  answer = 400;
  const notices: string[] = [];
  const exported = await openSpanExport({ runId: "r", config: { endpoint }, onNotice: (text) => notices.push(text) });
  const tracer = createTracer({ worker: "tool/0", spanIds: true });
  for (let i = 0; i < 1200; i++) tracer.span("work", "compute").end(); // more than one request carries
  exported.add(tracer.drain());
  await exported.close(50_000);
  expect(headers.length).toBeGreaterThan(1);
  expect(notices).toEqual([expect.stringMatching(/^spans cannot be exported, and are lost: /)]);
});

it("OT3: a collector that never answers does not hold the end of a run up", async () => {
  collector.removeAllListeners("request");
  const exported = await openSpanExport({ runId: "r", config: { endpoint }, onNotice: () => {} });
  const tracer = createTracer({ worker: "tool/0", spanIds: true });
  tracer.span("work", "compute").end();
  exported.add(tracer.drain());
  await exported.close(100);
});

it("is wanted when the configuration or the environment names an endpoint", () => {
  expect(isSpanExportWanted(undefined, {})).toBe(false);
  expect(isSpanExportWanted({}, {})).toBe(false);
  expect(isSpanExportWanted({ endpoint: "http://c:4318" }, {})).toBe(true);
  expect(isSpanExportWanted(undefined, { OTEL_EXPORTER_OTLP_ENDPOINT: "http://c:4318" })).toBe(true);
  expect(isSpanExportWanted({ endpoint: "http://c:4318" }, { OTEL_SDK_DISABLED: "true" })).toBe(false);
});
