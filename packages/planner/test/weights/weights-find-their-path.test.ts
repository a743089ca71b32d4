/** Which way weights go, by engines and nodes, and what is said of the ways that they do not go. */
import type { EngineFacts, Plan } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { type ModelEngine, weightPathNames, weightPaths } from "../../src/weights/weight-paths.ts";

const torch: EngineFacts = { kind: "torch", weightsBy: "ticket" };
const vllm: EngineFacts = { kind: "vllm" };
const onDevice: EngineFacts = { kind: "torch", weightsBy: "device", device: "cuda" };
const on = (...nodes: string[]) => ({ ranks: nodes.map((node) => ({ node, devices: [`${node}/cuda:0`] })) });
const spanning = (...devices: string[]) => ({ ranks: [{ node: "a", devices }] });

function pathsOf(trainer: EngineFacts, generator: EngineFacts, components: Plan["components"] = {}) {
  const engines: ModelEngine[] = [
    { name: "rollout", work: "generation", engine: generator },
    { name: "actor", work: "training", engine: trainer },
  ];
  return weightPaths({ components: { actor: on("a"), rollout: on("a"), ...components } }, engines);
}

test.each<[string, EngineFacts, EngineFacts, string, object]>([
  ["embedded", { kind: "embedded" }, { kind: "embedded" }, "'embedded' read and write no files", { path: "bytes" }],
  ["PyTorch", torch, torch, "verifies the file that 'actor' writes in their host's memory", { path: "disk" }],
  ["PyTorch in a folder", { ...torch, publishesIn: "/w" }, torch, "writes in '/w'", { path: "disk" }],
  ["PyTorch as bytes", { ...torch, weightsBy: "bytes" }, torch, "weightsBy of 'actor' is 'bytes'", { path: "bytes" }],
  ["a server", torch, vllm, "the system copies the file", { path: "disk", isThroughNode: false }],
  [
    "a server with a folder",
    { ...torch, publishesIn: "/w" },
    { ...vllm, readsFrom: "/r" },
    "a folder in '/r', with a link to the file",
    { path: "disk", isThroughNode: false },
  ],
  [
    "a server and a value head",
    { ...torch, valueHead: true },
    vllm,
    "which Node writes: 'actor' has a value head",
    { path: "disk", isThroughNode: true },
  ],
  [
    "a server of adapters, and a value head",
    { ...torch, valueHead: true },
    { ...vllm, readsAdapters: true },
    "the system copies the adapter alone that 'actor' writes",
    { path: "disk", isThroughNode: false },
  ],
  [
    "a server as bytes",
    { ...torch, weightsBy: "bytes" },
    vllm,
    "which Node writes: weightsBy",
    { path: "disk", isThroughNode: true },
  ],
  [
    "a value head between engines on PyTorch",
    { ...torch, valueHead: true },
    torch,
    "verifies the file",
    { path: "disk", isThroughNode: false },
  ],
])("%s", (_, trainer, generator, said, found) => {
  const [path, ...more] = pathsOf(trainer, generator);
  expect(more).toEqual([]);
  expect(path).toMatchObject({
    from: "actor",
    to: "rollout",
    numRanks: 1,
    why: expect.stringContaining(said),
    ...found,
  });
});

test("weights stay on a device that trainer and receiver share, and on no other", () => {
  for (const device of ["cuda", "auto"] as const) {
    const [path] = pathsOf({ ...onDevice, device }, { ...onDevice, device });
    const why = expect.stringContaining("memory of 'a/cuda:0'");
    expect(path).toMatchObject({ path: "ipc", isThroughNode: false, why });
  }
  const refusals: [EngineFacts, EngineFacts, Plan["components"], string][] = [
    [{ ...onDevice, weightsBy: "ticket" }, onDevice, {}, "weightsBy of 'actor' is 'ticket'"],
    [onDevice, { ...onDevice, weightsBy: "bytes" }, {}, "weightsBy of 'rollout' is 'bytes'"],
    [onDevice, { ...onDevice, device: "cpu" }, {}, "'rollout' computes on its host"],
    [{ ...onDevice, trainsAdapters: true }, onDevice, {}, "'actor' trains an adapter"],
    [onDevice, onDevice, { actor: spanning("a/cuda:0", "a/cuda:1") }, "'actor' is sharded"],
    [onDevice, onDevice, { rollout: spanning("a/cuda:0", "a/cuda:1") }, "'rollout' is sharded"],
    [onDevice, onDevice, { actor: spanning("a/cpu:0"), rollout: spanning("a/cpu:0") }, "'actor' has no CUDA device"],
    [onDevice, onDevice, { actor: spanning("a/rocm:0"), rollout: spanning("a/rocm:0") }, "'actor' has no CUDA device"],
    [onDevice, onDevice, { actor: spanning(), rollout: spanning() }, "'actor' has no CUDA device"],
    [onDevice, onDevice, { actor: spanning("a/cuda:1") }, "'actor' and 'rollout' compute on different devices"],
    [onDevice, onDevice, { actor: on("b") }, "'actor' and 'rollout' compute on different devices"],
    [onDevice, vllm, {}, "engines of kind 'vllm' map no memory"],
  ];
  for (const [trainer, receiver, components, why] of refusals) {
    const [found] = pathsOf(trainer, receiver, components);
    expect(found!.path).not.toBe("ipc");
    expect(found!.refused).toContainEqual({ path: "ipc", why: expect.stringContaining(why) });
  }
});

test("weights go over a process group where both engines have set the same, and files are left out", () => {
  const gloo: EngineFacts = { ...torch, collective: "gloo" };
  for (const actor of [on("a"), on("b")]) {
    const [path] = pathsOf({ ...gloo, trainsAdapters: true }, gloo, { actor });
    expect(path).toMatchObject({ path: "collective", isThroughNode: false, why: expect.stringContaining("over gloo") });
    expect(path!.refused).toContainEqual({ path: "disk", why: expect.stringContaining("goes before files") });
  }
  const both = { ...onDevice, collective: "gloo" } as const;
  expect(pathsOf(both, both)).toMatchObject([{ path: "ipc" }]);
  const refusals: [EngineFacts, EngineFacts, string][] = [
    [torch, torch, "engine.collective of 'actor' and 'rollout' is 'off'"],
    [gloo, torch, "'gloo' for 'actor' and 'off' for 'rollout'"],
    [gloo, { ...gloo, collective: "nccl" }, "'gloo' for 'actor' and 'nccl' for 'rollout'"],
    [{ ...gloo, weightsBy: "bytes" }, gloo, "'actor' writes no file that could be sent"],
    [gloo, vllm, "engines of kind 'vllm' join no process group"],
    [both, both, "for engines that share no device"],
  ];
  for (const [trainer, receiver, why] of refusals) {
    const [found] = pathsOf(trainer, receiver);
    expect(found!.path).not.toBe("collective");
    expect(found!.refused).toContainEqual({ path: "collective", why: expect.stringContaining(why) });
  }
});

test("ranks go apart by node: each pulls from a trainer's rank of its own", () => {
  const far = { actor: on("a", "b"), rollout: on("a", "a", "b", "b") };
  expect(pathsOf(torch, torch, far).map(({ path, numRanks, why }) => [path, numRanks, why])).toEqual([
    ["disk", 2, expect.stringContaining("their host's memory")], // 0 of 0 on a, 3 of 1 on b
    ["bytes", 2, expect.stringContaining("in the memory of another node; set weightsFolder")],
  ]);
  const shared = pathsOf({ ...torch, publishesIn: "/w" }, torch, far);
  expect(shared.map(({ path, numRanks }) => [path, numRanks])).toEqual([
    ["disk", 2],
    ["disk", 2],
  ]);
  expect(shared[1]!.why).toContain("where both nodes have it on one file system; as bytes where not");
});

test("a plan without one of the two says nothing of them, and emulated engines move nothing", () => {
  expect(weightPaths({ components: { actor: on("a") } }, [{ name: "actor", work: "training", engine: torch }])).toEqual(
    [],
  );
  expect(pathsOf(torch, torch, { rollout: { ranks: [] } as never })).toEqual([]);
  expect(pathsOf({ kind: "emulated" }, { kind: "emulated" })).toMatchObject([{ path: "none", refused: [] }]);
});

test("one path is taken by every rank, and each of the others is refused with a reason of its own", () => {
  const facts = fc.record({
    kind: fc.constantFrom("embedded", "torch", "sglang", "vllm"),
    weightsBy: fc.constantFrom("device", "ticket", "bytes", undefined),
    device: fc.constantFrom("auto", "cpu", "cuda", undefined),
    trainsAdapters: fc.boolean(),
    collective: fc.constantFrom("off", "gloo", "nccl", undefined),
    publishesIn: fc.constantFrom("/w", undefined),
    valueHead: fc.boolean(),
  } as const);
  const nodes = fc.array(fc.constantFrom("a", "b", "c"), { minLength: 1, maxLength: 6 });
  fc.assert(
    fc.property(facts, facts, nodes, nodes, (trainer, generator, actor, rollout) => {
      const found = pathsOf(trainer, generator, { actor: on(...actor), rollout: on(...rollout) });
      expect(found.reduce((sum, { numRanks }) => sum + numRanks, 0)).toBe(rollout.length);
      for (const { path, refused, isThroughNode } of found) {
        const told = [path, ...refused.map((each) => each.path)];
        expect(told.toSorted()).toEqual([...weightPathNames].toSorted());
        expect(new Set(refused.map(({ why }) => why)).size).toBe(refused.length);
        if (path === "bytes") expect(isThroughNode).toBe(true);
      }
    }),
  );
});

test("what shares its trainer's process moves nothing, rank by rank, and where it does not, the reason is said", () => {
  const shared: EngineFacts = { ...torch, sharesProcess: true };
  const cpus = (...devices: string[]) => ({ ranks: devices.map((device) => ({ node: "a", devices: [device] })) });
  const [path, ...more] = pathsOf(shared, shared);
  expect(more).toEqual([]);
  expect(path).toMatchObject({ path: "shared", isThroughNode: false, refused: [], numRanks: 1 });
  expect(path!.why).toContain("'rollout' computes in the process of 'actor' on 'a/cuda:0'");
  // On a host every trainer of the node is near.
  const beside = pathsOf(shared, shared, { actor: cpus("a/cpu:0", "a/cpu:1"), rollout: cpus("a/cpu:2", "a/cpu:3") });
  expect(beside.map(({ path: each, numRanks }) => [each, numRanks])).toEqual([
    ["shared", 1],
    ["shared", 1],
  ]);
  const elsewhere = { rollout: { ranks: [{ node: "a", devices: ["a/cuda:1"] }] } };
  for (const [trainer, generator, components, reason] of [
    [torch, shared, {}, /each rank of 'actor' is a process of its own.*engine.process 'shared'/],
    [shared, torch, {}, /each rank of 'rollout' is a process of its own/],
    [{ ...shared, trainsAdapters: true }, shared, {}, /trains an adapter/],
    [shared, vllm, {}, /engines of kind 'vllm' run no module/],
    [shared, shared, elsewhere, /on no device of 'actor'/],
    [shared, shared, { rollout: on("b") }, /on no device of 'actor'/],
  ] as const) {
    const [other] = pathsOf(trainer, generator, components);
    expect(other!.path).not.toBe("shared");
    expect(other!.refused.find((refused) => refused.path === "shared")?.why).toMatch(reason);
  }
});
