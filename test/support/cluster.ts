/** A cluster of real worker processes for a test, with everything that it tells. */
import { readdirSync, readFileSync } from "node:fs";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type RunEvent, RuntimeConfig, runPrefix, type TreadleError } from "@treadle/contracts";
import type { z } from "zod";
import { RunCluster } from "../../packages/runtime/src/runner/cluster/run-cluster.ts";
import { projectRoot } from "./project.ts";

export type TestCluster = {
  readonly cluster: RunCluster;
  readonly folder: string;
  readonly runId: string;
  readonly events: RunEvent[];
  readonly spans: unknown[];
  /** the first failure that restarts could not mend */
  readonly failure: Promise<TreadleError>;
  close(): Promise<void>;
};

export async function startCluster(
  config: z.input<typeof RuntimeConfig> = {},
  workflow?: { url: string; exports: Record<string, unknown> },
): Promise<TestCluster> {
  const folder = await mkdtemp(join(tmpdir(), "treadle-test-"));
  const runId = `test-${crypto.randomUUID().slice(0, 13)}`;
  const events: RunEvent[] = [];
  const spans: unknown[] = [];
  const cluster = new RunCluster({
    runId,
    config: RuntimeConfig.parse(config),
    projectRoot,
    runFolder: folder,
    logs: folder,
    stateFolder: join(folder, "state"),
    workflowModule: workflow,
    onEvent: (event) => events.push(event),
    onSpans: (batch) => spans.push(batch),
  });
  const failure = new Promise<TreadleError>((resolve) => cluster.onFailure(resolve));
  return {
    cluster,
    folder,
    runId,
    events,
    spans,
    failure,
    close: async () => {
      await cluster.close();
      await rm(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
    },
  };
}

/** Waits until something is so; fails after a generous deadline, with what it was. */
export async function until<T>(look: () => T | Promise<T>, what: string, deadlineMs = 30_000): Promise<NonNullable<T>> {
  const endMs = Date.now() + deadlineMs;
  for (;;) {
    const value = await look();
    if (value) return value;
    if (Date.now() > endMs) throw new Error(`waited ${deadlineMs} ms for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** Shared memory that a run has left. */
export async function segmentsOf(runId: string): Promise<string[]> {
  const names = await readdir("/dev/shm").catch(() => []);
  return names.filter((name) => name.startsWith(runPrefix(runId)));
}

/** Of process `pid`, those that are alive and have `text` in their command. Linux. */
export function childrenOf(pid: number, text: string): number[] {
  const children = readdirSync(`/proc/${pid}/task`).flatMap((thread) =>
    textOf(`/proc/${pid}/task/${thread}/children`).split(" ").filter(Boolean).map(Number),
  );
  return children.filter((child) => textOf(`/proc/${child}/cmdline`).includes(text));
}

/** What has ended meanwhile says nothing. */
function textOf(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

export function pidOf(events: readonly RunEvent[], worker: string): number {
  const event = events.findLast(
    (each) => (each.type === "worker-started" || each.type === "worker-restarted") && each.worker === worker,
  );
  if (!event || !("pid" in event) || event.pid === undefined) throw new Error(`worker '${worker}' has not started`);
  return event.pid;
}
