/** A collector of OpenTelemetry that keeps the spans that it is sent over OTLP. */
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { z } from "zod";

const Attribute = z.object({
  key: z.string(),
  value: z.object({ stringValue: z.string().optional(), intValue: z.union([z.number(), z.string()]).optional() }),
});
const Span = z.object({
  traceId: z.string(),
  spanId: z.string(),
  parentSpanId: z.string().optional(),
  name: z.string(),
  attributes: z.array(Attribute),
});
const ExportRequest = z.object({
  resourceSpans: z.array(
    z.object({
      resource: z.object({ attributes: z.array(Attribute) }),
      scopeSpans: z.array(z.object({ spans: z.array(Span) })),
    }),
  ),
});

/** `instance`: the process that it is of, as `rollout/0`. */
export type CollectedSpan = z.infer<typeof Span> & { readonly instance: string | undefined };

export async function startCollector(): Promise<
  { readonly endpoint: string; readonly spans: readonly CollectedSpan[] } & Disposable
> {
  const spans: CollectedSpan[] = [];
  const server = createServer(async (request, response) => {
    for (const { resource, scopeSpans } of ExportRequest.parse(JSON.parse(await text(request))).resourceSpans) {
      const instance = resource.attributes.find(({ key }) => key === "service.instance.id")?.value.stringValue;
      spans.push(...scopeSpans.flatMap((scope) => scope.spans.map((span) => ({ ...span, instance }))));
    }
    response.writeHead(200, { "content-type": "application/json" }).end("{}");
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    spans,
    [Symbol.dispose]: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}
