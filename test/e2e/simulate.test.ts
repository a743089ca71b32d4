import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { treadle } from "../support/treadle.ts";

/** Written by hand: rollout takes 4 s an item on one device, the actor 2 s. */
const profile = {
  version: 1,
  workflow: "by-hand",
  createdAt: "2026-01-01T00:00:00Z",
  hardware: { key: "none", description: "imagined" },
  graph: {
    batch: 64,
    components: {
      rollout: { methods: { generate: { callsPerStep: 1, takes: ["prompts"], puts: ["episodes"] } } },
      actor: { methods: { train: { callsPerStep: 1, takes: ["episodes"], puts: [] } } },
    },
    channels: {
      prompts: { producers: [], consumers: ["rollout"], itemsPerStep: 64, bytesPerStep: 0 },
      episodes: { producers: ["rollout"], consumers: ["actor"], itemsPerStep: 64, bytesPerStep: 0 },
    },
    edges: [{ from: "rollout", to: "actor", channel: "episodes", itemsPerStep: 64, bytesPerStep: 0 }],
    cycles: [],
  },
  components: { rollout: component(4), actor: component(2) },
  steps: [],
};

function component(perItem: number) {
  const sample = { items: 64, spread: 0, accepted: 3, rejected: 0, contended: false };
  return {
    key: String(perItem),
    devicesPerRank: 1,
    minDevices: 1,
    maxDevices: 1024,
    samples: [1, 2].map((devices) => ({ ...sample, devices, seconds: (64 * perItem) / devices })),
    fit: { base: 0, perItem, alpha: 1, relativeError: 0 },
    memory: [],
    onloadSeconds: 0,
    offloadSeconds: 0,
    serialSeconds: 0,
  };
}

let folder: string;
let file: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-simulate-"));
  file = join(folder, "by-hand.json");
  await writeFile(file, JSON.stringify(profile));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

type Answer = { stepSeconds: { mean: number }; devices: unknown[]; plan: object; predictedSeconds: number };
const simulated = async (...args: string[]): Promise<Answer> => {
  const { code, stdout, stderr } = await treadle(["simulate", ...args, "--profile", file, "--json"]);
  expect(code, stderr).toBe(0);
  return JSON.parse(stdout) as Answer;
};

test("a workflow is planned and run on as many devices as one likes, and a plan is run as it is", async () => {
  const planned = await simulated("by-hand", "--devices", "32", "--steps", "2", "--mode", "temporal");
  expect(planned.stepSeconds.mean).toBeCloseTo((64 * 6) / 32, 6);
  expect(planned.predictedSeconds).toBeCloseTo((64 * 6) / 32, 6);
  expect(planned.devices).toHaveLength(32);
  const plan = join(folder, "plan.json");
  await writeFile(plan, JSON.stringify(planned.plan));
  expect((await simulated(plan)).stepSeconds).toEqual(planned.stepSeconds);
});

test("the timeline is a page with every device and rank", async () => {
  const page = join(folder, "page.html");
  const { code, stdout } = await treadle(["simulate", "by-hand", "--profile", file, "--steps", "1", "--html", page]);
  expect(code).toBe(0);
  expect(stdout).toContain("a step takes");
  const html = await readFile(page, "utf8");
  for (const name of ["rollout/0", "actor/0", "cpu:0", "step 1"]) expect(html).toContain(name);
});

test.each([
  [["by-hand", "--devices", "none"], "--devices 'none' is not allowed"],
  [["by-hand", "--tail", "rollout"], "--tail 'rollout' is not allowed"],
  [["package.json"], "'package.json' is no plan"],
  [["package.json", "--devices", "4"], "--devices is of no use with 'package.json'"],
])("%j is refused with what is wrong", async (args, message) => {
  const { code, stderr } = await treadle(["simulate", ...args, "--profile", file]);
  expect(code).toBe(2);
  expect(stderr.replace(/\s+/g, " ")).toContain(message);
  expect(stderr).not.toContain("    at ");
});
