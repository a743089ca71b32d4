/** A cluster with real worker processes and a folder of its own, for one benchmark. */
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { RuntimeConfig } from "@treadle/contracts";
import type { z } from "zod";
import { Cluster } from "../cluster/cluster.ts";
import * as items from "./items.ts";

export type BenchCluster = AsyncDisposable & { readonly cluster: Cluster };

/** Worker modules must lie below it; holds for the sources and for the compiled package. */
const projectRoot = fileURLToPath(new URL("../..", import.meta.url));

export async function openBenchCluster(config: z.input<typeof RuntimeConfig>): Promise<BenchCluster> {
  const folder = await mkdtemp(join(tmpdir(), "treadle-bench-"));
  const [logs, stateFolder] = [join(folder, "logs"), join(folder, "state")];
  await Promise.all([mkdir(logs), mkdir(stateFolder)]);
  const cluster = new Cluster({
    runId: `bench-${crypto.randomUUID().slice(0, 8)}`,
    config: RuntimeConfig.parse(config),
    projectRoot,
    runFolder: folder,
    logs,
    stateFolder,
    workflowModule: { url: new URL(moduleFile("./items"), import.meta.url).href, exports: items },
    onEvent: () => {},
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

/** The name of a sibling module, as a source or compiled. */
export function moduleFile(name: string): string {
  return import.meta.url.endsWith(".ts") ? `${name}.ts` : `${name}.js`;
}
