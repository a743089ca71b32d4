import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Link } from "@treadle/contracts";
import { type Endpoint, type EndpointOptions, openEndpoint } from "../../src/index.ts";
import type { LinkPair } from "./link-contract.ts";

export const token = "a token that only this test has";
export const runId = `transport-test-${process.pid}`;

export async function folder(): Promise<{ path: string; dispose(): Promise<void> }> {
  const path = await mkdtemp(join(tmpdir(), "treadle-t-"));
  return { path, dispose: () => rm(path, { recursive: true, force: true }) };
}

/** Two endpoints of this process, joined by a link over the first (unix) or second (TCP) address. */
export async function joined(
  kind: "unix" | "tcp",
  options: Partial<EndpointOptions> = {},
): Promise<LinkPair & { endpoints: [Endpoint, Endpoint] }> {
  const where = await folder();
  const right = await openEndpoint({
    name: "right",
    runId,
    token,
    ...(kind === "unix" ? { unixPath: join(where.path, "s") } : { tcp: { port: 0 } }),
    ...options,
  });
  const left = await openEndpoint({ name: "left", runId, token, ...options });
  const accepted = new Promise<Link>((resolve) => right.onLink(resolve));
  const dialled = await left.connect(right.addresses, { expect: "right" });
  return {
    left: dialled,
    right: await accepted,
    endpoints: [left, right],
    async dispose() {
      await Promise.all([left.close(), right.close()]);
      await where.dispose();
    },
  };
}
