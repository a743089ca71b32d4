/** A run that is no durable one, resumed from a copy of its folder while it goes on: nodes work for the newer runner, and the older one ends. */
import { cp, rm } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { until } from "../support/cluster.ts";
import { NodesWorld } from "../support/nodes.ts";

test("the older of two runners of one run ends with 'run.locked', and the newer goes on", async () => {
  await using world = await NodesWorld.open();
  await world.startNode("a");
  const first = world.startRun(["steps=100000"]);
  const { runId } = await first.event("run-started");
  await first.event("step-finished");
  const elsewhere = join(world.root, "elsewhere");
  // A file that is being written has another name, and may be gone before it is copied.
  const copy = () =>
    cp(world.runs, elsewhere, { recursive: true }).then(
      () => true,
      (error: NodeJS.ErrnoException) => {
        if (error.code !== "ENOENT") throw error;
      },
    );
  await until(copy, "a whole copy of the run's folder");
  await rm(join(elsewhere, runId, "runner.lock"), { recursive: true, force: true }); // of another machine
  const second = world.startRun([], runId, elsewhere);
  expect(await first.exited).not.toBe(0);
  const threw = first.events.find((event) => (event.type as string) === "threw");
  expect(threw).toMatchObject({ code: "run.locked" });
  const steps = () => second.events.filter(({ type }) => type === "step-finished").length;
  await until(() => steps() > 2, "steps of the newer one", 120_000);
}, 300_000);
