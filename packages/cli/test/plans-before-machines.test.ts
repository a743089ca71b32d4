/** `treadle plan --model`, as somebody types it who has no such devices. */
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { type ComponentProfile, Profile } from "@treadle/contracts";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type RehearsalFlags, rehearsalOf } from "../src/commands/rehearsal.ts";

const root = resolve(import.meta.dirname, "../../..");
const folder = mkdtempSync(join(tmpdir(), "treadle-rehearsal-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const model = {
  model_type: "qwen3",
  hidden_size: 4096,
  num_hidden_layers: 36,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  head_dim: 128,
  intermediate_size: 12288,
  vocab_size: 151936,
};
const names = ["rollout", "inference", "actor"];
const measured: ComponentProfile = {
  key: "k",
  devicesPerRank: 1,
  minDevices: 1,
  maxDevices: 2,
  samples: [{ devices: 1, items: 16, seconds: 0.1, spread: 0, accepted: 3, rejected: 0, contended: false }],
  fit: null,
  memory: [],
  onloadSeconds: 0,
  offloadSeconds: 0,
  serialSeconds: 0,
};
const edges = [0, 1].map((i) => {
  return { from: names[i]!, to: names[i + 1]!, channel: `c${i}`, itemsPerStep: 16, bytesPerStep: 100 };
});
const profile: Profile = {
  version: 1,
  workflow: "reasoning-grpo",
  createdAt: "2026-01-01T00:00:00.000Z",
  hardware: { key: "h", description: "" },
  overheadSeconds: 0,
  graph: {
    batch: 16,
    components: Object.fromEntries(names.map((name) => [name, { methods: {} }])),
    channels: {},
    edges,
    calls: [],
    cycles: [],
  },
  components: Object.fromEntries(names.map((name) => [name, measured])),
  steps: [],
};
const files = {
  profile: join(folder, "profile.json"),
  model: join(folder, "config.json"),
  kept: join(folder, "kept.json"),
  real: join(folder, "real.json"),
};
beforeAll(() => {
  writeFileSync(files.profile, JSON.stringify(profile));
  writeFileSync(files.model, JSON.stringify(model));
});

function plan(...parameters: string[]) {
  const command = [
    join(root, "packages/cli/bin/treadle.js"),
    "plan",
    "workflows/reasoning-grpo",
    "--profile",
    files.profile,
  ];
  const settings = ["--set", "batch=512", "--set", "maxRanks=64", "--set", "groupSize=8"];
  return spawnSync(process.execPath, [...command, ...settings, ...parameters], {
    cwd: root,
    encoding: "utf8",
    timeout: 120_000,
  });
}
const h200 = ["--model", files.model, "--device", "h200", "--devices", "64"];

test("shows memory, seconds and the arithmetic before the plan, and keeps what was estimated for a simulation", () => {
  const { stdout, stderr, status } = plan(...h200, "--save-profile", files.kept);
  expect(status, stderr).toBe(0);
  expect(stdout).toMatch(
    /^Estimated on 64 × h200 \(131\.3 GiB, 989 Tflop\/s, 4\.8 TB\/s\), where nothing was measured\.$/m,
  );
  expect(stdout).toMatch(/512 prompts of 1024 tokens, 8 responses each, of 4096 tokens/);
  for (const [name, work] of [
    ["rollout", "generation"],
    ["inference", "scoring"],
    ["actor", "training"],
  ])
    expect(stdout).toMatch(new RegExp(`^  ${name} +${work}, \\d devices? a rank: .* alone, .*iB of each device$`, "m"));
  expect(stdout).toContain("8.19 G parameters, each of 18 bytes");
  expect(stdout).toMatch(/^ {2}actor → rollout, \d+ ranks?: bytes$/m);
  expect(stdout).toMatch(/^reasoning-grpo: .* a step$/m);
  const kept = Profile.parse(JSON.parse(readFileSync(files.kept, "utf8")));
  expect([kept.graph.batch, kept.hardware.key]).toEqual([512, "rehearsed-h200"]);
  expect(kept.components["actor"]!.maxDevices).toBe(64);
  expect(stdout.replaceAll(/\s+/g, " ")).toContain("give 'actor' ranks of as many in placement.components");
  expect(stderr).not.toContain("measure again"); // what was measured here counts for nothing
}, 180_000);

test("as JSON has the estimates of each case, also of what if, corrected by what was measured", () => {
  const kept = Profile.parse(JSON.parse(readFileSync(files.kept, "utf8")));
  const real = join(folder, "real.json");
  writeFileSync(real, JSON.stringify({ ...kept, hardware: profile.hardware }));
  const { stdout, stderr, status } = plan(
    ...h200,
    "--what-if",
    "devices=128",
    "--calibrate",
    real,
    "--json",
    "--set",
    "engine.kind=torch",
    "--set",
    "engine.weightsFolder=/shared",
  );
  expect(status, stderr).toBe(0);
  const { plans } = JSON.parse(stdout);
  expect(plans.map(({ devices }: { devices: number }) => devices)).toEqual([64, 128]);
  for (const { estimates } of plans) {
    expect(estimates.map(({ component }: { component: string }) => component)).toEqual(names);
    for (const { corrections } of estimates) expect(corrections.batches.factor).toBeCloseTo(1, 4); // it is as was estimated
  }
  const paths: { to: string; path: string; why: string }[] = plans[0].weights;
  // The devices are planned for as the CUDA devices that they are.
  expect(new Set(paths.map(({ to, path }) => `${to} ${path}`))).toEqual(new Set(["rollout disk", "inference ipc"]));
  for (const { path, why } of paths)
    expect(why).toContain(path === "ipc" ? "maps and verifies" : "writes in '/shared'");
  const [rollout] = plans[0].estimates;
  expect(rollout.arithmetic.at(-1)).toMatch(/new weights by 'disk': 15\.3 GiB at 655\.4 MiB\/s/);
  const [few, many] = plans.map(({ estimates }: { estimates: { seconds: number }[] }) => estimates.at(-1)!.seconds);
  expect(many).toBeLessThan(few);
}, 180_000);

test("steps that were measured with that model on such devices correct the estimates unasked, for any number of devices", () => {
  const kept = Profile.parse(JSON.parse(readFileSync(files.kept, "utf8")));
  const slow = ({ samples, ...own }: ComponentProfile): ComponentProfile => ({
    ...own,
    model: { parameters: 8190735360, layers: 36, width: 4096, vocabSize: 151936 },
    samples: samples.map((sample) => ({ ...sample, seconds: 2 * sample.seconds })),
    onceSeconds: 2 * (own.onceSeconds ?? 0),
  });
  const real: Profile = {
    ...kept,
    hardware: { key: "h", description: "64 cuda of 143771 MiB", accelerator: "NVIDIA H200" },
    components: Object.fromEntries(Object.entries(kept.components).map(([name, each]) => [name, slow(each)])),
    steps: [{ layout: "l", mode: "temporal", devices: 64, granularity: "all", seconds: 1, deviation: 0, samples: 12 }],
  };
  writeFileSync(files.real, JSON.stringify(real));
  const { stdout, stderr, status } = plan(...h200, "--devices", "128", "--profile", files.real);
  expect(status, stderr).toBe(0);
  const said = stdout.replaceAll(/\s+/g, " ");
  expect(said).toContain("calibrated by 12 steps on 64 cuda of 143771 MiB.");
  expect(said.match(/its batches: estimate was 50\.0? ?% off \d+ measurements, and is taken × 2\.00/g)).toHaveLength(3);
  const other = plan(...h200, "--device", "h100", "--profile", files.real).stdout;
  expect(other).toContain("where nothing was measured");
}, 180_000);

test("refuses what fits nowhere as any mistake", () => {
  const { stdout, stderr, status } = plan("--model", files.model, "--device", "l40s", "--devices", "2");
  expect([status, stdout]).toEqual([2, ""]);
  expect(stderr).toMatch(/component 'actor' needs .* on each of 2 devices/);
  expect(stderr).not.toMatch(/^\s+at /m);
}, 180_000);

const none = { promptTokens: "1024", responseTokens: "4096", maxTokens: "32768", lengthSpread: "0.8" };
const actor = { name: "actor", config: {}, options: {}, workerClass: { modelWork: "training" as const } };
test.each<[Partial<RehearsalFlags>, string]>([
  [{ model: files.model }, "--model needs --device, too"],
  [{ device: "h200" }, "--device needs --model, too"],
  [{ calibrate: files.profile }, "give --model and --device, too"],
  [{ model: files.model, device: "h900" }, "there are no figures of device 'h900'"],
  [{ model: "no/config.json", device: "h200" }, "--model 'no/config.json' cannot be read"],
  [{ model: files.model, device: "h200", lengthSpread: "wide" }, "--length-spread 'wide' is not allowed"],
  [{ model: files.model, device: "h200", responseTokens: "0" }, "--response-tokens '0' is not allowed"],
  [{ model: files.model, device: "h200", maxTokens: "100" }, "which end at '100', are not allowed"],
  [{ model: files.model, device: "h200", lengthSpread: "4" }, "a spread of lengths of '4' is not allowed"],
  [{ model: files.model, device: "h200", calibrate: files.kept }, "by a profile that is an estimate itself"],
  [
    { model: files.model, device: "h200", calibrate: files.profile },
    "times what is estimated: the profile is of another model",
  ],
])("%j is refused: %s", (flags, said) => {
  const ask = () =>
    rehearsalOf({ ...none, ...flags }, profile, [actor], "2026-01-01T00:00:00.000Z")?.at({ devices: 8, batch: 16 });
  expect(ask).toThrow(said);
});

test("neither a measured profile nor anything else is replaced by an estimate", () => {
  for (const path of [files.profile, folder]) {
    const { stderr, status } = plan(...h200, "--save-profile", path);
    expect([status, stderr]).toEqual([2, expect.stringContaining("is there already, and no estimate")]);
  }
}, 180_000);

test("what a worker of one's own means by 'epochs' or 'groupSize' is not known, and no error", () => {
  for (const config of [{ epochs: 0 }, { groupSize: "auto" }, [1], undefined, null]) {
    const own = { ...actor, config };
    const asked = rehearsalOf(
      { ...none, model: files.model, device: "h200" },
      profile,
      [own],
      "2026-01-01T00:00:00.000Z",
    );
    expect(asked?.at({ devices: 64, batch: 16 }).setting.samples).toBe(1);
  }
});

test("a workflow in which nobody says that it runs a model is told so, and without the flags nothing is estimated", () => {
  const tool = { ...actor, workerClass: { modelWork: undefined } };
  const ask = (flags: Partial<RehearsalFlags>) => rehearsalOf({ ...none, ...flags }, profile, [tool], "");
  expect(() => ask({ model: files.model, device: "h200" })).toThrow("static modelWork");
  expect(ask({})).toBeUndefined();
});
