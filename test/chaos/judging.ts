/** What every judge of struck runs asks. */
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { replayRun } from "@treadle/runtime/runner";
import { segmentsOf } from "../support/cluster.ts";
import type { NodesWorld } from "../support/nodes.ts";

export const batch = 12;
export const endMs = 90_000;

type World = Pick<NodesWorld, "project" | "expectNothingLeft">;

/** S4, RS7: once its processes are gone, nothing of a run is left, and what its runners decided is decided again from what they wrote down. */
export async function expectOver(
  world: World,
  runs: string,
  runId: string,
  log: (text: string) => void,
): Promise<void> {
  await replayed(join(runs, runId), world.project, log);
  await within(endMs, "shared memory to be gone", async () => (await segmentsOf(runId)).length === 0);
  await world.expectNothingLeft(runId, [], runs);
}

/** Killed runners included. */
async function replayed(folder: string, project: string, log: (text: string) => void): Promise<void> {
  const { recordings } = await replayRun(folder, project);
  const inputs = recordings.reduce((sum, recording) => sum + recording.inputs, 0);
  log(`${recordings.length} runners decided ${inputs} inputs; decided again, they have the same effects`);
  if (inputs === 0) throw new Error("nothing was recorded");
}

export async function within(
  limitMs: number,
  what: string,
  holds: () => boolean | Promise<boolean>,
  signal?: AbortSignal,
): Promise<void> {
  const untilMs = performance.now() + limitMs;
  while (!(await holds())) {
    signal?.throwIfAborted();
    if (performance.now() > untilMs) throw new Error(`waited ${limitMs / 1000} s in vain for ${what}`);
    await delay(100);
  }
}
