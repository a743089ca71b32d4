/** A dashboard that has none of a run's files, and reaches its runner by way of NATS alone. */
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeEach, expect, onTestFailed, test } from "vitest";
import { NodesWorld, type RunProcess } from "../support/nodes.ts";
import { startTreadle, until } from "../support/treadle.ts";

let world: NodesWorld;
beforeEach(async () => {
  world = await NodesWorld.open();
});
afterEach(() => world.close());

/** Waits until `holds` while the run goes on. */
async function whileRunning(run: RunProcess, holds: () => Promise<boolean>): Promise<void> {
  const ended = run.exited.then((code) => {
    throw new Error(`the run ended with ${code}: ${JSON.stringify(run.events.slice(-5))}`);
  });
  let isOver = false;
  const waiting = until(async () => isOver || holds());
  await Promise.race([waiting, ended]).finally(() => {
    isOver = true;
  });
}

test("a run of another machine is listed, followed with its curves, plan and spans, and seen to its last step", async () => {
  await world.startNode("a");
  const run = world.startRun(["steps=40", "pauseMs=100"]);
  const elsewhere = join(world.root, "elsewhere");
  await mkdir(elsewhere);
  const dashboard = startTreadle(["dashboard", "--runs", elsewhere, "--port", "0", ...world.flagsOf()]);
  onTestFailed(() => console.error(`${dashboard.output()}\n${JSON.stringify(run.events.slice(-20), null, 1)}`));
  try {
    await until(() => /http\S+token=\S+(?=:)/.test(dashboard.output()) || dashboard.child.exitCode !== null);
    const [address = ""] = /http\S+token=[\w-]+/.exec(dashboard.output()) ?? [];
    expect(dashboard.output()).toContain("http");
    const entered = await fetch(address, { redirect: "manual", signal: AbortSignal.timeout(100_000) });
    const cookie = entered.headers.get("set-cookie")?.split(";")[0] ?? "";
    const ask = async <T>(path: string): Promise<T> =>
      (await (await fetch(new URL(path, address), { headers: { cookie } })).json()) as T;
    const list = () => ask<readonly { readonly step: number; readonly phase: string }[]>("/api/runs");
    type Now = { state: { workers: object }; versions: { spans: number } };

    const { runId } = await run.event("run-started");
    await whileRunning(run, async () => (await list()).some(({ step }) => step >= 2));
    expect(await list()).toMatchObject([{ runId, phase: "running", numSteps: 40 }]);
    const { state } = await ask<Now>(`/api/runs/${runId}`);
    expect(Object.keys(state.workers).length).toBeGreaterThan(0);
    const numMetrics = async () => (await ask<unknown[]>(`/api/runs/${runId}/metrics`)).length;
    await whileRunning(run, async () => (await numMetrics()) > 1); // each step's come behind it
    expect(await ask(`/api/runs/${runId}/facts`)).toMatchObject({ plan: { mode: "spatial" }, config: { steps: 40 } });
    // Once somebody looks at it, its trace comes, too.
    const trace = async () => {
      await fetch(new URL(`/api/runs/${runId}/spans`, address), { headers: { cookie } });
      return (await ask<Now>(`/api/runs/${runId}`)).versions.spans > 0;
    };
    await whileRunning(run, trace);
    expect(await run.exited).toBe(0);
    await until(async () => (await list())[0]?.phase === "finished");
    expect((await list())[0]).toMatchObject({ step: 40 });
    expect(await numMetrics()).toBe(40);
  } finally {
    dashboard.child.kill("SIGTERM");
    await dashboard.finished;
  }
}, 480_000);
