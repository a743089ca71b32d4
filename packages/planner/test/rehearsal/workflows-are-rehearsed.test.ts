/** Plans for devices that nobody has measured: what they are made of, when they are refused, and how measurements correct them. */
import { Profile } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { planFromProfile } from "../../src/auto/plan-from-profile.ts";
import { deviceFigures, figuresOf } from "../../src/rehearsal/device-figures.ts";
import { modelShapeOf } from "../../src/rehearsal/model-shape.ts";
import { type RehearsalSetting, rehearse, rehearsedDevices } from "../../src/rehearsal/rehearse.ts";
import { chainProfile } from "../synthetic-profile.ts";

const model = (width: number, layers: number) =>
  modelShapeOf(
    {
      model_type: "qwen3",
      hidden_size: width,
      num_hidden_layers: layers,
      num_attention_heads: width / 128,
      num_key_value_heads: 8,
      head_dim: 128,
      intermediate_size: 3 * width,
      vocab_size: 151936,
    },
    "config.json",
  );
const traced = chainProfile({
  rollout: { perItem: 0.01 },
  reward: { perItem: 0.001, devices: "none" },
  actor: { perItem: 0.02 },
});
const setting: RehearsalSetting = {
  device: "h200",
  devices: 64,
  batch: 512,
  samples: 8,
  shape: model(4096, 36),
  lengths: { promptTokens: 512, responseTokens: 4096, spread: 0.8, maxResponseTokens: 32768 },
  components: [
    { name: "rollout", work: "generation" },
    { name: "actor", work: "training" },
  ],
  createdAt: "2026-01-01T00:00:00.000Z",
};
const plan = (given: RehearsalSetting) => {
  const { profile } = rehearse(traced, given);
  const components = Object.keys(profile.components).map((name) => ({
    name,
    devices: name === "reward" ? ("none" as const) : undefined,
  }));
  return planFromProfile(profile, {
    devices: rehearsedDevices(given.device, given.devices),
    batch: given.batch,
    maxStaleness: 0,
    components: components.map(({ name, devices }) => (devices ? { name, devices } : { name })),
    deadlineMs: 2000,
    nowMs: () => performance.now(),
  });
};

test("a model of 8 G parameters on 64 devices is planned, with memory and times of the sizes that such runs have", () => {
  const { profile, parts, others } = rehearse(traced, setting);
  expect(Profile.parse(profile)).toEqual(profile);
  expect([profile.graph.batch, others]).toEqual([512, ["reward"]]);
  const [rollout, actor] = parts;
  // 4096 responses of some 5600 tokens: 23 M tokens, at 60 to 120 thousand a second on 64 such devices.
  expect(rollout!.seconds).toBeGreaterThan(100);
  expect(rollout!.seconds).toBeLessThan(400);
  // 8 × 8.2 G × 25 M operations at 0.4 of 64 × 989 T.
  expect(actor!.seconds).toBeGreaterThan(50);
  expect(actor!.seconds).toBeLessThan(150);
  expect(actor!.arithmetic[0]).toContain(
    "G parameters, each of 18 bytes (weights 2, master 4, gradient 4, moments 8), over 64 devices",
  );
  const { alternatives, predicted } = plan(setting);
  expect(alternatives.length).toBeGreaterThan(1);
  // Not below what each takes alone on everything, one after the other, but for what streams into the next.
  expect(predicted.stepSeconds).toBeGreaterThan(Math.max(rollout!.seconds, actor!.seconds));
  expect(predicted.stepSeconds).toBeLessThan(2 * (rollout!.seconds + actor!.seconds));
});

test("what fits no device is refused with the arithmetic: by rank before anything is planned, by cluster when it is", () => {
  const large = { ...setting, shape: model(16384, 96) };
  expect(() => rehearse(traced, { ...large, device: "l40s" })).toThrow(
    /component 'rollout' does not fit on devices of 48 GiB: it needs weights: \d+ G parameters of 2 bytes over 8 devices: .*; use larger devices/,
  );
  expect(() =>
    rehearse(traced, { ...large, components: [{ name: "rollout", work: "generation", devicesPerRank: 1 }] }),
  ).toThrow(/over 1 device: .*; give it more devices/);
  expect(() => plan({ ...large, device: "b200", devices: 16 })).toThrow(
    /component 'actor' needs .* on each of 16 devices, which have .* too little/,
  );
});

test("numbers that make no sense are refused by name", () => {
  const refused = (changes: Partial<RehearsalSetting>, said: string) =>
    expect(() => rehearse(traced, { ...setting, ...changes })).toThrow(said);
  refused({ devices: 0 }, "devices '0' is not allowed");
  refused({ samples: 1.5 }, "samples '1.5' is not allowed");
  refused({ lengths: { ...setting.lengths, spread: Number.NaN } }, "a spread of lengths of 'NaN' is not allowed");
  refused(
    { lengths: { ...setting.lengths, maxResponseTokens: 100 } },
    "responses of '4096' tokens in the median, which end at '100', are not allowed",
  );
  refused({ device: "h900" }, "there are no figures of device 'h900'; known are a100-40g");
  refused({ components: [{ name: "critic", work: "training" }] }, "the profile does not know component 'critic'");
  expect(() => figuresOf("toString")).toThrow("there are no figures");
});

test("what was measured corrects the estimates, and how far they were off is said", () => {
  fc.assert(
    fc.property(
      fc.double({ min: 0.3, max: 3, noNaN: true }),
      fc.constantFrom(...Object.keys(deviceFigures)),
      (factor, device) => {
        const small = {
          ...setting,
          device,
          devices: 8,
          shape: model(2048, 16),
          lengths: { ...setting.lengths, maxResponseTokens: 8192 },
        };
        const estimated = rehearse(traced, small).profile;
        const slower = Object.fromEntries(
          Object.entries(estimated.components).map(([name, each]) => [
            name,
            { ...each, samples: each.samples.map((sample) => ({ ...sample, seconds: sample.seconds * factor })) },
          ]),
        );
        const measured = { ...estimated, components: slower, hardware: traced.hardware };
        const { parts, profile } = rehearse(traced, { ...small, measured });
        for (const { component, correction, seconds } of parts) {
          expect(correction!.factor).toBeCloseTo(factor, 6);
          expect(correction!.errorBefore).toBeCloseTo(Math.abs(1 / factor - 1), 6);
          expect(correction!.errorAfter).toBeCloseTo(0, 6);
          const before = estimated.components[component]!.samples;
          expect(seconds).toBeCloseTo(
            before.find(({ devices, items }) => devices === 8 && items === 512)!.seconds * factor,
            3,
          );
        }
        expect(Profile.safeParse(profile).success).toBe(true);
      },
    ),
    { numRuns: 10 },
  );
});

test("more devices never take longer, and a larger batch never less", () => {
  const seconds = (changes: Partial<RehearsalSetting>) =>
    rehearse(traced, { ...setting, ...changes }).parts.map((part) => part.seconds);
  for (const devices of [8, 16, 32]) {
    const [few, many] = [seconds({ devices }), seconds({ devices: 2 * devices })];
    for (const [at, each] of few.entries()) expect(many[at]).toBeLessThanOrEqual(each * 1.001);
    const larger = seconds({ devices, batch: 1024 });
    for (const [at, each] of few.entries()) expect(larger[at]).toBeGreaterThan(each);
  }
});
