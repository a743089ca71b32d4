import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import type { DeviceSpec, Profile } from "@treadle/contracts";
import fc from "fast-check";
import { expect, onTestFinished, test } from "vitest";
import type { Component } from "../../../src/runner/placement/component.ts";
import {
  calibrationPath,
  componentKey,
  describeHardware,
  modelSizes,
  profilePath,
} from "../../../src/runner/placement/profile-store.ts";

const root = "/home/someone/project";

test("a profile is kept under the path of its workflow", () => {
  const kept = join(root, ".treadle/profiles/workflows/grpo.json");
  expect(profilePath(root, join(root, "workflows/grpo"))).toBe(kept);
  expect(profilePath(root, join(root, "workflows/grpo/"))).toBe(kept);
  expect(profilePath(root, "/anywhere", "mine.json")).toBe(join(root, "mine.json"));
});

test("two folders never share a profile, whatever they are called and wherever they are", () => {
  const part = fc.constantFrom("a", "b", "grpo", "grpo.json", "elsewhere", "..a", "project");
  const folder = fc.oneof(
    fc.array(part, { maxLength: 4 }).map((parts) => join(root, ...parts)),
    fc.array(part, { minLength: 1, maxLength: 3 }).map((parts) => join("/home", ...parts)),
  );
  fc.assert(
    fc.property(folder, folder, (one, other) => {
      const [ofOne, ofOther] = [profilePath(root, one), profilePath(root, other)];
      expect(ofOne === ofOther).toBe(one === other);
      expect(ofOne.startsWith(join(root, ".treadle/profiles/"))).toBe(true);
    }),
    { numRuns: 1000 },
  );
});

const gpu = (index: number, name?: string): DeviceSpec => {
  return { id: `cuda:${index}`, index, node: "here", kind: "cuda", memoryBytes: 2 ** 37, ...(name && { name }) };
};
const slot: DeviceSpec = { id: "cpu:0", index: 0, node: "here", kind: "cpu", memoryBytes: 2 ** 30 };

test("hardware says what its accelerators are, where all are the same", () => {
  const named = (...devices: DeviceSpec[]) => describeHardware(devices).accelerator;
  expect(named(gpu(0, "NVIDIA H200"), gpu(1, "NVIDIA H200"), slot)).toBe("NVIDIA H200");
  expect(named(gpu(0, "NVIDIA H200"), gpu(1, "NVIDIA H100"))).toBeUndefined();
  expect(named(gpu(0, "NVIDIA H200"), gpu(1))).toBeUndefined();
  expect(named(slot)).toBeUndefined();
  // A profile that was made before names were known counts for the same machine.
  expect(describeHardware([gpu(0, "NVIDIA H200")]).key).toBe(describeHardware([gpu(0)]).key);
});

const sizes = { parameters: 10, layers: 1, width: 2, vocabSize: 3 };
test("what calibrates estimates is kept apart by device and model, and nothing else is", () => {
  const profile = (accelerator: string | undefined, model: typeof sizes | undefined): Profile => ({
    version: 1,
    workflow: "w",
    createdAt: "2026-01-01T00:00:00.000Z",
    hardware: { key: "k", description: "", ...(accelerator && { accelerator }) },
    graph: { batch: 1, components: {}, channels: {}, edges: [], calls: [], cycles: [] },
    components: {
      rollout: {
        ...{ key: "k", devicesPerRank: 1, minDevices: 1, maxDevices: 1, samples: [], fit: null, memory: [] },
        ...{ onloadSeconds: 0, offloadSeconds: 0, serialSeconds: 0, ...(model && { model }) },
      },
    },
    overheadSeconds: 0,
    steps: [],
  });
  const at = (...of: Parameters<typeof profile>) => calibrationPath("/p/w.json", profile(...of));
  const paths = [
    at("NVIDIA H200", sizes),
    at("NVIDIA H100 80GB HBM3", sizes),
    at("NVIDIA H200", { ...sizes, layers: 2 }),
  ];
  expect(new Set(paths).size).toBe(3);
  expect(paths[0]).toMatch(/^\/p\/w\.h200-[0-9a-f]{16}\.json$/);
  expect([at(undefined, sizes), at("NVIDIA H200", undefined), at("NVIDIA T4", sizes)]).toEqual([
    undefined,
    undefined,
    undefined,
  ]);
});

test("a model's sizes are those of its folder; what cannot be read has none", () => {
  const folder = mkdtempSync(join(tmpdir(), "treadle-model-"));
  const write = (text: string) => writeFileSync(join(folder, "config.json"), text);
  try {
    expect(modelSizes(folder)).toBeUndefined();
    for (const text of ["{", "{}", " ".repeat(2 ** 20 + 1)]) {
      write(text);
      expect(modelSizes(folder)).toBeUndefined();
    }
    const heads = { num_attention_heads: 2, num_key_value_heads: 1, head_dim: 8 };
    const widths = { hidden_size: 16, intermediate_size: 32, num_hidden_layers: 2, vocab_size: 20 };
    write(JSON.stringify({ model_type: "qwen3", ...heads, ...widths, tie_word_embeddings: true }));
    // Of a layer: queries and output 2·16·16, keys and values 2·16·8, gated product 3·16·32, norms 2·16 + 2·8.
    const layer = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 32 + 2 * 16 + 2 * 8;
    expect(modelSizes(folder)).toEqual({ parameters: 2 * layer + 20 * 16 + 16, layers: 2, width: 16, vocabSize: 20 });
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("a component is another one when its code, its configuration or its layout is, and the same in two runs", () => {
  const folder = mkdtempSync(join(tmpdir(), "treadle-test-"));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const file = join(folder, "actor.ts");
  writeFileSync(file, "export class Actor {}");
  const module = pathToFileURL(file).href;
  const of = (more: object = {}) =>
    componentKey({ module, exportName: "Actor", config: {}, options: {}, ...more } as unknown as Component, folder);
  const key = of();
  expect(of()).toBe(key);
  for (const more of [{ exportName: "Other" }, { config: { rows: 2 } }, { options: { devicesPerRank: 2 } }])
    expect(of(more)).not.toBe(key);
  const begun = { module, exportName: "Actor", config: {}, options: {} } as unknown as Component;
  expect(componentKey(begun, folder)).toBe(key);
  writeFileSync(file, "export class Actor { /* five times as much */ }");
  expect(of()).not.toBe(key);
  expect(componentKey(begun, folder), "a run has the code that it began with").toBe(key);
  expect(of({ module: "treadle/workers" })).toBe(of({ module: "treadle/workers" }));
  rmSync(file);
  expect(of()).not.toBe(key);
});
