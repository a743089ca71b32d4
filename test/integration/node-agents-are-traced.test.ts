import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { rootOf } from "@treadle/observe";
import { expect, test } from "vitest";
import { pidOf, until } from "../support/cluster.ts";
import { startCollector } from "../support/collector.ts";
import { NodesWorld } from "../support/nodes.ts";

test("what a node agent does for a run is in the run's trace, what it does for itself in its own, and all of it is sent before it leaves", async () => {
  using collector = await startCollector();
  await using world = await NodesWorld.open();
  const node = await world.startNode("a", ["--otlp", collector.endpoint, "--drain", "0"]);
  const run = world.startRun(["steps=4", "pauseMs=20", `observe.otlp.endpoint=${collector.endpoint}`]);
  const { runId } = await run.event("run-started");
  await run.event("step-started", ({ step }) => step === 2);
  process.kill(pidOf(run.events, "maker/1"), "SIGKILL");
  await run.event("run-finished");
  expect(await run.exited).toBe(0);
  node.child.kill("SIGTERM");
  await new Promise((resolve) => node.child.once("exit", resolve));
  expect(node.output()).toContain("has left");

  const own = collector.spans.filter(({ instance }) => instance === "node-agent/a");
  const ofRun = own.filter(({ traceId }) => traceId === rootOf(runId, undefined).traceId);
  const names = ofRun.map(({ name }) => name).toSorted();
  const ranks = ["maker/0", "maker/1", "trainer/0", "trainer/1"];
  expect(names.filter((name) => name.startsWith("start "))).toEqual(
    [...ranks, "maker/1"].toSorted().map((rank) => `start ${rank}`),
  );
  expect(names.filter((name) => name.endsWith(" died"))).toEqual(["maker/1 died"]);
  expect(names.filter((name) => name === "open run" || name === "close run")).toEqual(["close run", "open run"]);
  // A worker that the runner has told to stop may be gone before its agent is told, too; it did not die for that.
  const stops = names.filter((name) => name.startsWith("stop "));
  expect(new Set(stops).size).toBe(stops.length);
  expect(ranks.map((rank) => `stop ${rank}`)).toEqual(expect.arrayContaining(stops));
  // Their root is the one that the runner sends, so they stand beside what workers do outside of steps.
  for (const { parentSpanId } of ofRun) expect(parentSpanId).toBe(rootOf(runId, undefined).spanId);
  expect(collector.spans.find(({ spanId }) => spanId === rootOf(runId, undefined).spanId)?.name).toBe("run ledger");

  const root = own.find(({ name }) => name === "node a");
  const itself = own.filter(({ traceId }) => traceId === root?.traceId);
  expect(itself.length + ofRun.length).toBe(own.length);
  expect(new Set(itself.map(({ name }) => name))).toEqual(new Set(["join", "check code", "drain", "leave", "node a"]));
  for (const span of itself) expect(span.parentSpanId, span.name).toBe(span === root ? undefined : root?.spanId);
}, 300_000);

test("a collector that never answers keeps no node agent from leaving", async () => {
  const silent = createServer(() => {}).listen(0, "127.0.0.1");
  await once(silent, "listening");
  await using world = await NodesWorld.open();
  const { port } = silent.address() as AddressInfo;
  const node = await world.startNode("a", ["--otlp", `http://127.0.0.1:${port}`]);
  node.child.kill("SIGTERM");
  await until(() => node.child.exitCode !== null, "the agent to leave");
  expect(node.output()).toContain("has left");
  silent.closeAllConnections();
  silent.close();
}, 120_000);
