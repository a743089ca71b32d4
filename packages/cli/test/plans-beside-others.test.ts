/** `treadle plan --beside`: a workflow that was planned, and runs and workflows that would share its devices. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type DeviceSpec, type Plan, PoolConfig, Profile } from "@treadle/contracts";
import { afterAll, expect, test } from "vitest";
import { checkBatch, compareBeside, type PlannedBeside } from "../src/commands/beside.ts";
import { renderBeside } from "../src/view/beside-text.ts";

const projectRoot = mkdtempSync(join(tmpdir(), "treadle-beside-"));
afterAll(() => rmSync(projectRoot, { recursive: true, force: true }));

const devices: DeviceSpec[] = [0, 1].map((index) => ({
  ...{ id: `cpu:${index}`, index, node: "here", kind: "cpu" },
  memoryBytes: 2 ** 30,
}));

/** One component, of which an item takes a second on one device. */
const profile = Profile.parse({
  ...{ version: 1, workflow: "busy", createdAt: "2026-01-01T00:00:00Z", steps: [] },
  hardware: { key: "none", description: "imagined" },
  graph: {
    batch: 4,
    components: { actor: { methods: { train: { callsPerStep: 1, takes: ["items"], puts: [] } } } },
    channels: { items: { producers: [], consumers: ["actor"], itemsPerStep: 4, bytesPerStep: 0 } },
    ...{ edges: [], calls: [], cycles: [] },
  },
  components: {
    actor: {
      ...{ key: "actor", devicesPerRank: 1, minDevices: 1, maxDevices: 8, memory: [] },
      samples: [{ devices: 1, items: 4, seconds: 4, spread: 0, accepted: 3, rejected: 0, contended: false }],
      fit: { base: 0, perItem: 1, alpha: 1, relativeError: 0 },
      ...{ onloadSeconds: 0, offloadSeconds: 0, serialSeconds: 0 },
    },
  },
});
const planOn = (used: readonly DeviceSpec[]): Plan => ({
  mode: "temporal",
  components: { actor: { ranks: used.map(({ id }) => ({ devices: [id], node: "here" })) } },
  granularity: { default: "all", channels: {} },
  ...{ maxStaleness: 0, sharing: [], explanation: [] },
});
const here: PlannedBeside = {
  ...{ name: "mine", profile, devices, plan: planOn(devices), pool: PoolConfig.parse({}) },
  on: planOn,
};
const settings = { projectRoot, turnSeconds: 1, deadlineMs: 1000 };

function keepRun(id: string, used: readonly DeviceSpec[]): string {
  const folder = join(projectRoot, "runs", id);
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "config.json"), JSON.stringify({ workflow: "workflows/busy", config: {} }));
  writeFileSync(join(folder, "plan.json"), JSON.stringify(planOn(used)));
  mkdirSync(join(projectRoot, ".treadle/profiles/workflows"), { recursive: true });
  writeFileSync(join(projectRoot, ".treadle/profiles/workflows/busy.json"), JSON.stringify(profile));
  return folder;
}

test("a run has the plan that it runs by, and its profile", async () => {
  const beside = await compareBeside(here, [keepRun("busy-1", devices)], settings);
  const [mine, other] = beside.runs;
  expect([mine?.name, other?.name]).toEqual(["mine", "busy-1"]);
  expect(mine?.aloneSeconds).toBeCloseTo(2, 1);
  expect(mine?.slowdown).toBeGreaterThan(1.7);
  expect(beside.partsSeconds).toBeUndefined(); // nobody plans it again
  const [, head, ...rows] = renderBeside(beside, false);
  expect(head).toContain("a step alone");
  expect(rows[0]).toMatch(/^ {2}mine\s+2\.0\d? s/);
  expect(rows.at(-1)).toMatch(/1\.0\d times as fast as one after the other$/);
});

test("a run that has other devices costs nothing", async () => {
  const alone = { ...here, devices: devices.slice(0, 1), plan: planOn(devices.slice(0, 1)) };
  const elsewhere = { ...alone, name: "other", devices: devices.slice(1), plan: planOn(devices.slice(1)) };
  const beside = await compareBeside({ ...elsewhere, on: planOn }, [keepRun("busy-2", devices.slice(0, 1))], settings);
  expect(beside.runs[0]?.slowdown).toBeCloseTo(1, 2);
});

test("who was never measured, or is not there, cannot be compared with", async () => {
  const unknown = join(projectRoot, "workflows/unknown");
  mkdirSync(unknown, { recursive: true });
  await expect(compareBeside(here, [unknown], settings)).rejects.toThrow("there is no profile of 'unknown'");
  for (const absent of ["runs/absent", ""])
    await expect(compareBeside(here, [absent], settings)).rejects.toThrow(`--beside '${absent}' is not there`);
});

test.each([
  ["", "plan.json' is no plan: it is no JSON"],
  ['{"mode":', "plan.json' is no plan: it is no JSON"],
  ["{}", "plan.json' is no plan: mode: "],
])("a run whose plan is '%s' is named", async (text, message) => {
  const folder = keepRun("busy-3", devices);
  writeFileSync(join(folder, "plan.json"), text);
  await expect(compareBeside(here, [folder], settings)).rejects.toThrow(message);
});

test("a pool that nobody understands is named", async () => {
  const folder = keepRun("busy-4", devices);
  const config = { workflow: "workflows/busy", config: { pool: { weight: -1 } } };
  writeFileSync(join(folder, "config.json"), JSON.stringify(config));
  await expect(compareBeside(here, [folder], settings)).rejects.toThrow("config.json' has no pool that is understood");
});

test("another batch than was profiled is refused", () => {
  expect(() => checkBatch("mine", profile, 640)).toThrow("is 4 for 'mine', not 640");
  expect(() => checkBatch("mine", profile, 4)).not.toThrow();
});
