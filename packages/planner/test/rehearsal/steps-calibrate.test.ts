/** Measured steps correct estimates: whose they may be, by how much, and what of it is said. */
import { type ComponentProfile, mean, Profile } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { calibrationOf, sizesOf } from "../../src/rehearsal/calibration.ts";
import { deviceFigures, deviceNames, figuresNameOf } from "../../src/rehearsal/device-figures.ts";
import { type RehearsalSetting, rehearse } from "../../src/rehearsal/rehearse.ts";
import { model, setting, traced } from "./eight-billion.ts";

const small: RehearsalSetting = {
  ...setting,
  devices: 8,
  shape: model(2048, 16),
  lengths: { ...setting.lengths, maxResponseTokens: 8192 },
};
type Change = (each: ComponentProfile) => Partial<ComponentProfile>;

/** What a run on such devices would have measured, if it took what is estimated but for `change`. */
function measuredLike(given: RehearsalSetting, change: Change, more: Partial<Profile> = {}): Profile {
  const estimated = rehearse(traced, given).profile;
  const components = Object.entries(estimated.components).map(([name, each]) => {
    const isModel = given.components.some((own) => own.name === name);
    return [name, isModel ? { ...each, model: sizesOf(given.shape), ...change(each) } : each] as const;
  });
  const hardware = { key: "k", description: "8 cuda of 143771 MiB", accelerator: "NVIDIA H200" };
  const step = { layout: "l", mode: "temporal", devices: 8, granularity: "all", seconds: 1, deviation: 0 } as const;
  const steps = [3, 4].map((samples) => ({ ...step, samples }));
  return Profile.parse({ ...estimated, hardware, steps, components: Object.fromEntries(components), ...more });
}

const slower =
  (factor: number): Change =>
  ({ samples, onceSeconds = 0, serialSeconds, onloadSeconds, offloadSeconds }) => ({
    // The end of a step is twice as slow as all else, of which samples have their share.
    samples: samples.map((sample) => {
      const once = (onceSeconds * sample.items) / small.batch;
      return { ...sample, seconds: (sample.seconds - once) * factor + 2 * factor * once };
    }),
    onceSeconds: 2 * factor * onceSeconds,
    serialSeconds: 3 * factor * serialSeconds,
    onloadSeconds: 4 * factor * onloadSeconds,
    offloadSeconds: 4 * factor * offloadSeconds,
  });

test("every kind of work is corrected by its own factor, for any number of devices, and its error is said", () => {
  fc.assert(
    fc.property(
      fc.double({ min: 0.3, max: 3, noNaN: true }),
      fc.constantFrom(...Object.keys(deviceFigures)),
      (factor, device) => {
        const given = { ...small, device };
        const profile = measuredLike(given, slower(factor));
        const larger = { ...given, devices: 32 };
        const before = rehearse(traced, larger).profile.components;
        const found = rehearse(traced, { ...larger, calibration: { profile, isAsked: true } });
        const { parts, calibratedBy, profile: after } = found;
        expect(calibratedBy).toMatchObject({ steps: 7, hardware: "8 cuda of 143771 MiB", refused: {} });
        for (const { component, corrections } of parts) {
          const { batches } = corrections;
          expect(batches!.factor).toBeCloseTo(factor, 6);
          expect(batches!.errorBefore).toBeCloseTo(Math.abs(1 / factor - 1), 6);
          expect(batches!.errorAfter).toBeCloseTo(0, 6);
          expect(corrections.swaps!.factor).toBeCloseTo(4 * factor, 6);
          if (component === "actor") {
            expect(corrections.once!.factor).toBeCloseTo(2 * factor, 6);
            expect(corrections.once!.errorAfter).toBeUndefined();
          } else expect(corrections.weights!.factor).toBeCloseTo(3 * factor, 6);
          const [plain, corrected] = [before[component]!, after.components[component]!];
          expect(corrected.serialSeconds).toBeCloseTo(3 * factor * plain.serialSeconds, 6);
          expect(corrected.onloadSeconds).toBeCloseTo(4 * factor * plain.onloadSeconds, 6);
          for (const [i, { items, seconds }] of corrected.samples.entries()) {
            const once = ((plain.onceSeconds ?? 0) * items) / larger.batch;
            expect(seconds / (factor * (plain.samples[i]!.seconds - once) + 2 * factor * once)).toBeCloseTo(1, 6);
          }
        }
      },
    ),
    { numRuns: 4 },
  );
});

test("the error that is left is of measurements that the factor does not know: each is judged by all the others", () => {
  const noise = [1.1, 0.8, 1.3];
  const profile = measuredLike(small, ({ samples }) => ({
    samples: samples.slice(0, 3).map((sample, i) => ({ ...sample, seconds: sample.seconds * noise[i]! })),
  }));
  const { parts } = rehearse(traced, { ...small, calibration: { profile, isAsked: true } });
  const { batches } = parts.find(({ component }) => component === "rollout")!.corrections;
  const others = noise.map((_, i) => Math.exp(mean(noise.filter((_, j) => j !== i).map(Math.log))));
  expect(batches!.numPoints).toBe(3);
  expect(batches!.factor).toBeCloseTo(Math.cbrt(1.1 * 0.8 * 1.3), 6);
  expect(batches!.errorAfter).toBeCloseTo(mean(noise.map((each, i) => Math.abs(others[i]! - each) / each)), 6);
});

test("measurements are compared with an estimate of the lengths and the samples that they were made with", () => {
  const lengths = { promptTokens: 200, responseTokens: 900, spread: 0.5, maxResponseTokens: 4096 };
  const own = { ...small, lengths, samples: 4 };
  const profile = measuredLike(own, slower(1.5), { sequences: { ...lengths, perItem: 4 } });
  const { parts } = rehearse(traced, { ...small, calibration: { profile, isAsked: true } });
  for (const { corrections } of parts) expect(corrections.batches!.factor).toBeCloseTo(1.5, 6);
  const { sequences: _, ...unsaid } = profile;
  const wrong = rehearse(traced, { ...small, calibration: { profile: unsaid, isAsked: true } }).parts;
  for (const { corrections } of wrong) expect(corrections.batches!.factor).toBeLessThan(1);
});

test("the newest profile is found that says it is of this workflow, model and device, and none else", () => {
  const { shape } = small;
  const wanted = { workflow: traced.workflow, device: "h200", shape };
  const profile = measuredLike(small, slower(2));
  const newer = { ...profile, createdAt: "2026-02-01T00:00:00.000Z" };
  const { accelerator: _, ...nameless } = profile.hardware;
  const strangers = [
    traced,
    rehearse(traced, small).profile,
    { ...newer, workflow: "another" },
    { ...newer, hardware: nameless },
    { ...newer, hardware: { ...newer.hardware, accelerator: "NVIDIA H100 80GB HBM3" } },
    measuredLike({ ...small, shape: model(2048, 17) }, slower(2)),
    { ...newer, components: traced.components },
  ];
  expect(calibrationOf(strangers, wanted)).toBeUndefined();
  expect(calibrationOf([profile, ...strangers, newer], wanted)).toEqual({ profile: newer, isAsked: false });
});

test("of a found profile, components count that ran the model; what is too far off is left out, and refused where it was asked for", () => {
  const { parts } = rehearse(traced, {
    ...small,
    calibration: {
      profile: measuredLike(small, (each) => ({
        ...slower(2)(each),
        ...(each.onceSeconds ? { model: sizesOf(setting.shape) } : {}),
      })),
      isAsked: false,
    },
  });
  expect(parts.map(({ component, corrections }) => [component, corrections.batches?.factor])).toEqual([
    ["rollout", expect.closeTo(2, 6)],
    ["actor", undefined],
  ]);
  const profile = measuredLike(small, slower(25));
  const found = rehearse(traced, { ...small, calibration: { profile, isAsked: false } });
  expect(found.parts.map(({ corrections }) => corrections)).toEqual([{}, {}]);
  expect(found.calibratedBy!.refused["actor"]).toContain("25 times what is estimated");
  expect(found.profile.components).toEqual(rehearse(traced, small).profile.components);
  expect(() => rehearse(traced, { ...small, calibration: { profile, isAsked: true } })).toThrow(
    "'rollout' cannot be corrected: it was measured to take 25 times",
  );
});

test.each([
  ["NVIDIA H200", "h200"],
  ["NVIDIA H100 80GB HBM3", "h100"],
  ["NVIDIA A100-SXM4-40GB", "a100-40g"],
  ["NVIDIA A100-SXM4-80GB", "a100-80g"],
  ["NVIDIA L40S", "l40s"],
  ["NVIDIA B200", "b200"],
  ["AMD Instinct MI300X OAM", "mi300x"],
  ["NVIDIA H100 PCIe", undefined],
  ["NVIDIA H100 NVL", undefined],
  ["NVIDIA A100", undefined],
  ["NVIDIA GH200 480GB", undefined],
  ["", undefined],
])("'%s' has the figures of %s", (vendorName, name) => {
  expect(figuresNameOf(vendorName)).toBe(name);
  if (name !== undefined) expect(deviceNames).toContain(name);
});
