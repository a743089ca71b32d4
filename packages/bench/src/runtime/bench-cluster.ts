/** A cluster with real worker processes and a folder of its own, for one benchmark. */
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { type RunEvent, RuntimeConfig } from "@treadle/contracts";
import { findNodes, RunCluster } from "@treadle/runtime/internal";
import type { z } from "zod";
import { moduleFile } from "../processes.ts";
import * as items from "./items.ts";

export type BenchCluster = AsyncDisposable & { readonly cluster: RunCluster };

/** Worker modules must lie below it; holds for the sources and for the compiled package. */
export const benchRoot = fileURLToPath(new URL("../..", import.meta.url));

/** With `cluster.nats` on the node agents there, else on this machine. */
export async function openBenchCluster(
  input: z.input<typeof RuntimeConfig>,
  onEvent: (event: RunEvent) => void = () => {},
): Promise<BenchCluster> {
  const config = RuntimeConfig.parse(input);
  const folder = await mkdtemp(join(tmpdir(), "treadle-bench-"));
  const [logs, stateFolder] = [join(folder, "logs"), join(folder, "state")];
  await Promise.all([mkdir(logs), mkdir(stateFolder)]);
  const cluster = new RunCluster({
    runId: `bench-${crypto.randomUUID().slice(0, 8)}`,
    config,
    nodes: await findNodes(config, benchRoot, () => {}),
    projectRoot: benchRoot,
    runFolder: folder,
    logs,
    stateFolder,
    workflowModule: { url: new URL(moduleFile("./items"), import.meta.url).href, exports: items },
    onEvent,
    onSpans: () => {},
  });
  return {
    cluster,
    async [Symbol.asyncDispose]() {
      await cluster.close();
      await rm(folder, { recursive: true, force: true });
    },
  };
}
