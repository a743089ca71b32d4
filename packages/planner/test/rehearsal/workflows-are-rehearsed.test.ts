/** Plans for devices that nobody has measured: what they are made of, when they are refused, and how measurements correct them. */
import { Profile } from "@treadle/contracts";
import { expect, test } from "vitest";
import { planFromProfile } from "../../src/auto/plan-from-profile.ts";
import { figuresOf } from "../../src/rehearsal/device-figures.ts";
import { type RehearsalSetting, rehearse, rehearsedDevices } from "../../src/rehearsal/rehearse.ts";
import { model, setting, traced } from "./eight-billion.ts";

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
