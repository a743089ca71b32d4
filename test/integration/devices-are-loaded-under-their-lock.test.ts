import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { EpisodeGroup, Prompt } from "@treadle/contracts";
import type { EmulatedProfile } from "@treadle/engines";
import { ActorConfig, ActorWorker, Demonstration, RolloutConfig, RolloutWorker } from "@treadle/workers";
import { afterEach, expect, test } from "vitest";
import type { z } from "zod";
import { pidOf, startCluster, type TestCluster, until } from "../support/cluster.ts";
import { type EmulatedConfig, EmulatedWorker } from "../support/workers/emulated.ts";
import { Numbers } from "../support/workers/probe.ts";

const MiB = 2 ** 20;
let world: TestCluster;
afterEach(() => world.close());

/** Two components on one device of 100 MiB, which refuses what does not fit. */
async function launch(config: Partial<EmulatedConfig>) {
  world = await startCluster({
    cluster: { devices: 1, memoryPerDeviceMiB: 100 },
    placement: { mode: "temporal" },
  });
  const device = join(world.folder, "gpu-0");
  const all = { device, deviceBytes: 100 * MiB, residentBytes: 80 * MiB, ...config };
  const one = (name: string) => world.cluster.launch(EmulatedWorker, all, { name, ranks: { fixed: 1 } });
  return { rollout: await one("rollout"), actor: await one("actor"), one };
}

test("L1, L4: two workers of which one fits load one after the other, and then take turns", async () => {
  const { rollout, actor } = await launch({});
  for (let round = 0; round < 2; round++) {
    await rollout.work();
    await actor.work();
  }
  const swaps = await rollout.work().first();
  // Which of them was loaded first, before any call, is a matter of who started sooner.
  expect(swaps?.join(" ")).toMatch(/^load( offload onload){2,3}$/);
});

test("L4: two that fit together load once, and stay once their sizes are known", async () => {
  const { rollout, actor } = await launch({ residentBytes: 40 * MiB });
  for (let round = 0; round < 2; round++) {
    await rollout.work();
    await actor.work();
  }
  const swaps = [await rollout.work().first(), await actor.work().first()];
  expect(swaps.sort()).toEqual([["load"], ["load", "offload", "onload"]]); // one left for the other, whose size nobody knew
});

test("L4: what offloaded workers keep on the device counts for whoever loads next", async () => {
  const { rollout, actor, one } = await launch({ residentBytes: 30 * MiB, residualBytes: 20 * MiB });
  const small = await one("small");
  // Any two of them fit beside each other, and a third one fits beside what they keep only when both are gone.
  for (let round = 0; round < 2; round++) for (const each of [rollout, actor, small]) await each.work();
  expect(world.events.filter(({ type }) => type === "worker-died")).toEqual([]);
});

test("LW3: a call that prepares items before its engine decodes them keeps its devices meanwhile", async () => {
  const { rollout, actor, one } = await launch({});
  const feeder = await one("feeder");
  const prompts = world.cluster.channel("prompts", Numbers);
  await Promise.all([rollout.work(), actor.work()]);
  const feeding = feeder.putSlowly(prompts.sink, 4);
  const decoding = rollout.prepareAndDecode(prompts.source);
  let isOver = false;
  const decoded = decoding.first().finally(() => {
    isOver = true;
  });
  while (!isOver) await actor.work();
  await feeding;
  expect(await decoded).toBe(4);
  expect(world.events.filter(({ type }) => type === "worker-died")).toEqual([]);
});

/** Shipped workers on emulated engines, of which one fits on the device, which both share; unless `costs` say otherwise. */
async function launchShipped(
  costs: z.input<typeof EmulatedProfile> = {},
  ofRollout: z.input<typeof EmulatedProfile> = costs,
) {
  world = await startCluster({
    cluster: { devices: 1, memoryPerDeviceMiB: 100 },
    placement: { mode: "temporal" },
  });
  const alphabet = "0123456789";
  const engine = (own: z.input<typeof EmulatedProfile>) => ({
    model: { vocabSize: 12, layers: 1, width: 16, heads: 2, contextLength: 8 },
    emulated: {
      residentBytes: 60 * MiB,
      residualBytes: 10 * MiB,
      response: { medianTokens: 2 },
      ...own,
      deviceMemory: { folder: join(world.folder, "memory"), sizeMiB: 100 },
    },
  });
  const rollout = { ...engine(ofRollout), alphabet, groupSize: 1, maxTokens: 4, reward: { name: "arithmetic" } };
  const actor = { ...engine(costs), algorithm: { name: "grpo" }, learningRate: 0.1 };
  const { cluster } = world;
  const group = {
    rollout: cluster.launch(RolloutWorker, RolloutConfig.parse(rollout), { ranks: { fixed: 1 } }),
    actor: cluster.launch(ActorWorker, ActorConfig.parse(actor), { ranks: { fixed: 1 } }),
  };
  const demonstrations = cluster.channel("demonstrations", Demonstration);
  const train = async () => {
    await demonstrations.put({ tokens: Int32Array.of(2, 3, 4), mask: Float32Array.of(0, 0, 1) });
    await group.actor.imitate(demonstrations.source, { learningRate: 0.1, rows: 1, updates: 1 });
  };
  return { ...group, train };
}

test("L1, L4: shipped workers load their engines one after the other where one of them fits, and then take turns", async () => {
  const { rollout, actor, train } = await launchShipped();
  for (let round = 1; round <= 2; round++) {
    const prompts = [{ id: "1", tokens: Int32Array.of(2, 3), answer: "1" }];
    expect(await rollout.evaluate(prompts)).toEqual([expect.objectContaining({ total: 1 })]);
    await train();
    await rollout.pullWeights(actor);
  }
  expect(world.events.filter(({ type }) => type === "worker-died")).toEqual([]);
});

test("MT3: new weights go from an actor to a rollout beside it, and the cache alone comes and goes", async () => {
  const bytes = { residentBytes: 30 * MiB, residualBytes: 1 * MiB, onloadSeconds: 0.02, offloadSeconds: 0.02 };
  const { rollout, actor, train } = await launchShipped(
    { ...bytes, optimiserBytes: 25 * MiB },
    { ...bytes, cacheBytes: 38 * MiB },
  );
  const prompts = [{ id: "1", tokens: Int32Array.of(2, 3), answer: "1" }];
  const memory = join(world.folder, "memory");
  /** what has come to the device and left it, such as `+rollout/0 cache`, since the last look */
  let numSeen = 0;
  const moves = async () => {
    const [ofDevice = ""] = await readdir(memory);
    const lines = (await readFile(join(memory, ofDevice), "utf8")).trim().split("\n");
    const fresh = lines.slice(numSeen).map((line) => JSON.parse(line));
    numSeen = lines.length;
    return fresh.map(({ component, tag, bytes: held }) => `${held > 0 ? "+" : "-"}${component} ${tag}`);
  };
  await rollout.evaluate(prompts);
  await train();
  await moves();
  for (let round = 1; round <= 2; round++) {
    await rollout.pullWeights(actor);
    expect(await moves()).toEqual([]);
    await rollout.evaluate(prompts);
    const out = await moves();
    expect(out).toHaveLength(2);
    expect(out[0]).toMatch(/^-actor\/0 (weights|optimiser)$/);
    expect(out[1]).toBe("+rollout/0 cache");
    await train();
    expect(await moves()).toEqual(["-rollout/0 cache", out[0]?.replace("-", "+")]);
  }
  expect(world.events.filter(({ type }) => type === "worker-died")).toEqual([]);
});

test("MT3: a lock within another one that needs more tags is refused", async () => {
  const { rollout } = await launch({});
  await expect(Promise.resolve(rollout.workWithin())).rejects.toMatchObject({
    code: "workflow.invalid",
    message: expect.stringContaining("locks its devices with 'cache' within a lock of weights alone"),
  });
});

test("EX3: a rollout which waits for room in the middle of its generation lends its devices when that is done, and loses no episode", async () => {
  const { rollout, train } = await launchShipped({ decode: { baseSeconds: 0.2 } });
  const prompts = world.cluster.channel("prompts", Prompt);
  const groups = world.cluster.channel("groups", EpisodeGroup, { capacity: 1 });
  const ids = Array.from({ length: 6 }, (_, index) => `${index}`);
  await prompts.put(...ids.map((id) => ({ id, tokens: Int32Array.of(2, 3), answer: "1" })));
  const generating = rollout.generate(prompts.source, groups.sink).first();
  const [first] = (await groups.take({ items: 1 })) ?? []; // others are decoded still, or wait for room
  await train(); // on the devices of the call that waits
  const made = [first];
  while (made.length < ids.length) made.push(...((await groups.take({ items: 1 })) ?? []));
  await generating;
  const episodes = made.flatMap((group) => group?.episodes ?? []);
  expect(made.map((group) => group?.promptId).sort()).toEqual(ids);
  expect(episodes.map(({ finishReason }) => finishReason)).not.toContain("abort");
  expect(world.events.filter(({ type }) => type === "worker-died")).toEqual([]);
});

test("S2: weights are pulled of an actor which starts again on the devices of the worker that pulls", async () => {
  const { rollout, actor, train } = await launchShipped();
  await train();
  await rollout.pullWeights(actor);
  process.kill(pidOf(world.events, "actor/0"), "SIGKILL");
  await until(() => world.events.some(({ type }) => type === "worker-died"), "the actor's death to be known");
  // The actor needs the devices to load: whoever waits for it may not hold them.
  await rollout.pullWeights(actor);
  expect(world.events).toContainEqual(expect.objectContaining({ type: "worker-restarted", worker: "actor/0" }));
});

test("S1: a load that throws fails the run with its cause, once", async () => {
  const { rollout } = await launch({ fails: "no weights here" });
  await expect(Promise.resolve(rollout.work())).rejects.toMatchObject({
    code: "worker.setup-failed",
    message: expect.stringMatching(/'(rollout|actor)\/0' could not be loaded: no weights here/),
  });
  const deaths = world.events.flatMap((event) => (event.type === "worker-died" ? [event.worker] : []));
  expect(deaths).not.toEqual([]);
  expect(new Set(deaths).size, deaths.join()).toBe(deaths.length);
});

test("EX3: a call that waits while its engine decodes lends its devices only when the engine is idle", async () => {
  const { rollout, actor } = await launch({ tokens: 40 });
  const [begun, prompts] = [world.cluster.channel("begun", Numbers), world.cluster.channel("prompts", Numbers)];
  const decoding = rollout.decodeAndTake(begun.sink, prompts.source);
  await begun.take({ items: 1 });
  // Its engine refuses to be released while it decodes, which would fail this call.
  await actor.work();
  await prompts.put(2, 3);
  expect(await decoding.first()).toEqual({ decoded: 3, swaps: ["offload", "onload"] });
});

test("EX3: with lend 'never' a call keeps its devices while it waits", async () => {
  const { rollout, actor } = await launch({});
  const [begun, prompts] = [world.cluster.channel("begun", Numbers), world.cluster.channel("prompts", Numbers)];
  const ends: string[] = [];
  const decoding = rollout.decodeAndTake(begun.sink, prompts.source, "never").first();
  await begun.take({ items: 1 });
  const working = actor.work().first();
  const both = [decoding.then(() => ends.push("rollout")), working.then(() => ends.push("actor"))];
  await until(() => world.cluster.loop.state.standstill().text.includes("'actor/0' waits for"), "the actor to wait");
  expect(ends).toEqual([]);
  await prompts.put(2, 3);
  expect(await decoding).toEqual({ decoded: 3, swaps: [] });
  await Promise.all(both);
  expect(ends).toEqual(["rollout", "actor"]);
});
