import type { IncomingMessage } from "node:http";

/** Of one connection only (RFC 9110 §7.6.1), or of this proxy. `expect` was answered here. */
const ofConnection = new Set([
  "connection",
  "expect",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);

/** Those that are forwarded, as written: name, value, name, value. */
function endToEnd({ rawHeaders, headers }: IncomingMessage, without: ReadonlySet<string>): string[] {
  const named = new Set(
    String(headers.connection ?? "")
      .toLowerCase()
      .split(/[\s,]+/),
  );
  // It says where the message ends, and is ours to keep.
  named.delete("content-length");
  const kept: string[] = [];
  for (let i = 0; i + 1 < rawHeaders.length; i += 2) {
    const [name = "", value = ""] = rawHeaders.slice(i, i + 2);
    const lower = name.toLowerCase();
    if (!ofConnection.has(lower) && !named.has(lower) && !without.has(lower)) kept.push(name, value);
  }
  return kept;
}

/**
 * With the Host header of where it goes, whatever the request has; and with the framing it came with, or without a body.
 * `withheld`: further ones that are not forwarded, in lower case.
 */
export function forwardedRequest(
  request: IncomingMessage,
  hostHeader: string,
  withheld: readonly string[] = [],
): { readonly headers: string[]; readonly hasBody: boolean } {
  const headers = ["Host", hostHeader, ...endToEnd(request, new Set(["host", ...withheld])), "Connection", "close"];
  const isChunked = request.headers["transfer-encoding"] !== undefined;
  if (isChunked) headers.push("Transfer-Encoding", "chunked");
  return { headers, hasBody: isChunked || request.headers["content-length"] !== undefined };
}

export const forwardedResponse = (answer: IncomingMessage, withheld: readonly string[] = []): string[] =>
  endToEnd(answer, new Set(withheld));

/** What names a client, or is said to Treadle: a model service is not told. */
export const ofClients: readonly string[] = ["authorization", "cookie", "x-treadle-tenant", "x-treadle-deadline-ms"];

const ofService: ReadonlySet<string> = new Set([...ofConnection, ...ofClients, "host", "content-length"]);

/** Whether a client may choose it for a request that this process makes. */
export const isForwarded = (name: string): boolean => !ofService.has(name.toLowerCase());
