/** What a plan says of weights is what engines do: the facts of shipped workers, and what their engines open. */
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { HostFiles, WeightTicket } from "@treadle/contracts";
import { ServerEngine, SglangConfig, TransformerEngine, VllmConfig } from "@treadle/engines";
import { SglangDouble, tinyWeights, VllmDouble, writeTinyModel } from "@treadle/engines/testing";
import { weightPaths } from "@treadle/planner";
import { ActorWorker, RolloutWorker } from "@treadle/workers";
import { afterAll, beforeAll, describe, expect, test } from "vitest";

const sizes = { vocabSize: 16, layers: 1, width: 8, heads: 1, contextLength: 32 };
const tiny = { ...sizes, dtype: "F32" as const };
const nonce = "0123456789abcdef".repeat(2);

let folder: string;
let hostFiles: HostFiles;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-paths-"));
  for (const name of ["memory", "shared", "elsewhere"]) await mkdir(join(folder, name));
  hostFiles = {
    folder: join(folder, "memory"),
    ownPrefix: "treadle-a.1-",
    leftPrefix: "treadle-a.left-",
    runPrefix: "treadle-a.",
  };
  await writeTinyModel(join(folder, "tiny"), tiny, tinyWeights(tiny, 1));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** As far as `opens` looks: where it says that it is, and of which tensors. */
async function ticketIn(root: string, valueHead: boolean): Promise<WeightTicket> {
  const store = join(root, "treadle-a.7-weights");
  await mkdir(store, { recursive: true, mode: 0o700 });
  await writeFile(join(store, "nonce"), nonce);
  const names = [...tinyWeights(tiny, 1).parameters.map(({ name }) => name), ...(valueHead ? ["value.weight"] : [])];
  const tensors = names.map((name) => ({ name, shape: [1], dtype: "F32" as const, crc32: 0 }));
  return { policyVersion: 1, checksum: "0".repeat(64), store, nonce, folder: "version-1-1", tensors };
}

function planned(engine: object, valueHead: boolean, nodes: { readonly actor: string; readonly rollout: string }) {
  const config = { model: { ...sizes, valueHead }, engine } as never;
  const on = (node: string) => ({ ranks: [{ node, devices: [] }] });
  const [path] = weightPaths({ components: { actor: on(nodes.actor), rollout: on(nodes.rollout) } }, [
    { name: "actor", work: ActorWorker.modelWork, engine: ActorWorker.engineFacts(config) },
    { name: "rollout", work: RolloutWorker.modelWork, engine: RolloutWorker.engineFacts(config) },
  ]);
  return path!;
}

describe.each(["sglang", "vllm"] as const)("%s", (kind) => {
  test.each([
    { weightsBy: "ticket", publishes: "memory", valueHead: false, nodes: { actor: "a", rollout: "a" } },
    { weightsBy: "ticket", publishes: "shared", valueHead: false, nodes: { actor: "a", rollout: "a" } },
    { weightsBy: "ticket", publishes: "shared", valueHead: false, nodes: { actor: "a", rollout: "b" } },
    { weightsBy: "ticket", publishes: "memory", valueHead: true, nodes: { actor: "a", rollout: "a" } },
    { weightsBy: "device", publishes: "memory", valueHead: false, nodes: { actor: "a", rollout: "a" } },
    { weightsBy: "bytes", publishes: "memory", valueHead: false, nodes: { actor: "a", rollout: "a" } },
    { weightsBy: "ticket", publishes: "memory", valueHead: false, nodes: { actor: "a", rollout: "b" } },
  ] as const)("opens what the plan says comes in files: %j", async ({ weightsBy, publishes, valueHead, nodes }) => {
    const double = await new { sglang: SglangDouble, vllm: VllmDouble }[kind]({ model: join(folder, "tiny") }).start();
    const weightsFolder = publishes === "shared" ? { weightsFolder: join(folder, "shared") } : {};
    const settings = {
      ...{ kind, url: double.url, model: join(folder, "tiny"), weightsFolder: join(folder, "server") },
      trainer: { kind: "torch" as const, weightsBy, ...weightsFolder },
    };
    const engine = kind === "sglang" ? SglangConfig.parse(settings) : VllmConfig.parse(settings);
    const receiver = await ServerEngine.create(sizes, engine, { hostFiles });
    try {
      const { path, isThroughNode } = planned(engine, valueHead, nodes);
      // On another node, the memory of the trainer's is not there.
      const isFar = nodes.actor !== nodes.rollout && publishes === "memory";
      const ticket = await ticketIn(join(folder, isFar ? "elsewhere" : publishes), valueHead);
      expect(path).toBe("disk");
      expect(await receiver.opens(ticket)).toBe(!isThroughNode);
      // A server maps no device's memory: the trainer is asked for a file.
      expect(await receiver.opens({ ...ticket, device: { uuid: "gpu", handle: "0".repeat(128) } })).toBe(false);
    } finally {
      await double.kill();
      await receiver.close();
    }
  });
});

test("the embedded engine knows no tickets, as the plan says", async () => {
  const engine = await TransformerEngine.create(sizes);
  expect("loadTicket" in engine).toBe(false);
  expect(planned({ kind: "embedded" }, false, { actor: "a", rollout: "a" })).toMatchObject({ path: "bytes" });
  await engine.close();
});
