import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { stripVTControlCharacters } from "node:util";
import type { ComponentProfile, DeviceSpec, Profile, SolveOptions } from "@treadle/contracts";
import { componentsOf, type PlannedCase, planPage } from "@treadle/dashboard";
import { type PlannedMode, planFromProfile, weightPaths } from "@treadle/planner";
import stringWidth from "string-width";
import { afterAll, describe, expect, test } from "vitest";
import { renderPlan, renderTimeline } from "../src/view/plan-text.ts";
import { formatSeconds } from "../src/view/text.ts";

const component = (perItem: number, alpha: number): ComponentProfile => ({
  key: "k",
  devicesPerRank: 1,
  minDevices: 1,
  maxDevices: 64,
  samples: [1, 2, 4].map((devices) => ({
    devices,
    items: 32,
    seconds: (perItem * 32) / devices ** alpha,
    spread: 0,
    accepted: 3,
    rejected: 0,
    contended: false,
  })),
  fit: { base: 0, perItem, alpha, relativeError: 0.01 },
  memory: [{ devices: 1, bytesPerDevice: 6 }],
  onloadSeconds: 1,
  offloadSeconds: 1,
  serialSeconds: 0.5,
});

const flow = (from: string, to: string) => ({ from, to, channel: `${from}-out`, itemsPerStep: 32, bytesPerStep: 0 });
const names = ["rollout", "reward", "actor<b>"];
const profile: Profile = {
  version: 1,
  workflow: "emulated",
  createdAt: "2026-01-01T00:00:00.000Z",
  hardware: { key: "h", description: "" },
  overheadSeconds: 0,
  graph: {
    batch: 32,
    components: Object.fromEntries(names.map((name) => [name, { methods: {} }])),
    channels: {},
    edges: [flow("rollout", "reward"), flow("reward", "actor<b>")],
    calls: [],
    cycles: [],
  },
  components: { rollout: component(2, 0.5), reward: component(0.5, 0.2), "actor<b>": component(1, 0.9) },
  steps: [],
};

function plannedCase(
  title: string,
  count: number,
  searching: Pick<SolveOptions, "deadlineMs" | "nowMs"> = {},
): PlannedCase {
  const devices = Array.from({ length: count }, (_, index): DeviceSpec => {
    return { id: `gpu:${index}`, index, node: "n", kind: "gpu", memoryBytes: 10 };
  });
  const target = { devices, batch: 32, maxStaleness: 0 };
  const found = planFromProfile(profile, { ...target, components: names.map((name) => ({ name })), ...searching });
  const weights = weightPaths(found.plan, [
    { name: "rollout", work: "generation", engine: { kind: "vllm", readsFrom: "/w<b>" } },
    { name: "actor<b>", work: "training", engine: { kind: "torch", weightsBy: "ticket" } },
  ]);
  return { title, ...target, found, searchMs: 1, weights };
}

describe("on a terminal", () => {
  test.each([40, 80, 200])("lanes fill %d columns and go no further, with colours and without", (columns) => {
    for (const { timeline } of plannedCase("w", 8).found.alternatives) {
      for (const colour of [true, false]) {
        const lines = renderTimeline(timeline, columns, colour).map(stripVTControlCharacters);
        const lanes = lines.filter((line) => line.endsWith("│"));
        expect(lanes).toHaveLength(timeline.lanes.length);
        expect(new Set(lanes.map((line) => stringWidth(line))).size).toBe(1);
        expect(stringWidth(lanes[0]!)).toBeLessThanOrEqual(columns);
      }
    }
  });

  test("every component has a letter of its own", () => {
    const { timeline } = plannedCase("w", 8).found.alternatives[0]!;
    const legend = renderTimeline(timeline, 100, false).at(-1)!;
    const letters = componentsOf(timeline).map((name) => new RegExp(` ([A-Z])  ${name}`).exec(legend)?.[1]);
    expect(letters.every((letter) => letter !== undefined)).toBe(true);
    expect(new Set(letters).size).toBe(letters.length);
  });

  test("shows the best of each mode, what limits it, and a change beside what it changes", () => {
    const before = plannedCase("w", 4);
    const after = plannedCase("what if devices=16", 16);
    const text = renderPlan(after, before, { columns: 100, colour: false }).join("\n");
    expect(text).toMatch(/what if devices=16: \w+, [\d.]+ s a step, \d\.\d\d times as fast/);
    for (const { mode, limits } of after.found.alternatives) {
      expect(text).toContain(mode);
      expect(text.replaceAll(/\s+/g, " ")).toContain(limits[0]);
    }
    expect(text).toContain("what would help");
    const said = text.replaceAll(/\s+/g, " ");
    expect(said).toMatch(/how weights travel actor<b> → rollout, \d+ ranks?: disk the server of 'rollout' reads/);
    expect(said).toContain("not collective: engines of kind 'vllm' join no process group");
    expect(text).toContain("extrapolated by a fit whose mean error is 1.0 %");
  });
});

test("a mode whose plan is not proven to be its best is shown with the bound, and no other is", () => {
  const one = plannedCase("w", 8);
  const show = (alternatives: readonly PlannedMode[]) =>
    renderPlan({ ...one, found: { ...one.found, alternatives } }, undefined, { columns: 200, colour: false }).join(
      "\n",
    );
  const [first, ...others] = one.found.alternatives.map((each) => ({ ...each, proven: true }));
  expect(show([first!, ...others])).not.toContain("not proven");
  const open = others.map((each) => ({ ...each, proven: false, boundSeconds: 1.5 }));
  const shown = show([first!, ...open]);
  expect(shown.split("not proven to be the best of its mode, which takes at least 1.50 s")).toHaveLength(
    open.length + 1,
  );
  const unbounded = show([first!, ...others.map((each) => ({ ...each, proven: false, boundSeconds: 0 }))]);
  expect(unbounded).toContain("not proven to be the best of its mode\n");
});

test("where the picture ends at another time than a step is predicted to, both are told, with the reason", () => {
  const planned = plannedCase("w", 8);
  const [best, ...others] = planned.found.alternatives as [PlannedMode, ...PlannedMode[]];
  const { seconds } = best.timeline;
  const shownOf = (stepSeconds: number, maxStaleness = 0): string[] => {
    const changed = { ...best, stepSeconds, plan: { ...best.plan, maxStaleness } };
    const found = { ...planned.found, alternatives: [changed, ...others] };
    const text = renderPlan({ ...planned, found }, undefined, { columns: 400, colour: false }).join("\n");
    return [text, planPage("w", [{ ...planned, found: { ...found, alternatives: [changed] } }])];
  };
  const words = `the picture shows the schedule by itself, ${formatSeconds(seconds)} from its beginning to its end`;
  for (const shown of shownOf(seconds)) expect(shown).not.toContain("the picture shows");
  for (const [steps, staleness, why] of [
    [seconds * 2, 0, "cores that slots share"],
    [seconds / 2, 1, "up to 2 steps overlap, so one is predicted to end every"],
  ] as const) {
    for (const shown of shownOf(steps, staleness)) {
      expect(shown).toContain(words);
      expect(shown).toContain(why);
      expect(shown).toContain(formatSeconds(steps));
    }
  }
});

test("where nothing is drawn up to the end of a step, the rest is told, with the reason", () => {
  const shownOf = (restSeconds: number): string[] => {
    const planned = plannedCase("w", 8);
    const [best, ...others] = planned.found.alternatives as [PlannedMode, ...PlannedMode[]];
    const stepSeconds = best.stepSeconds + restSeconds;
    const longer = { ...best, stepSeconds, timeline: { ...best.timeline, seconds: stepSeconds } };
    const found = { ...planned.found, alternatives: [longer, ...others] };
    const text = renderPlan({ ...planned, found }, undefined, { columns: 400, colour: false }).join("\n");
    return [text, planPage("w", [{ ...planned, found: { ...found, alternatives: [longer] } }])];
  };
  for (const shown of shownOf(0)) expect(shown).not.toContain("what is drawn ends at");
  for (const shown of shownOf(100))
    expect(shown).toMatch(/what is drawn ends at [\d.]+ s; the other 1m 40s of a step are what it takes besides/);
});

test("a mode that the deadline kept from being searched is shown with that, and not as impossible", () => {
  let nowMs = 0;
  const late = plannedCase("w", 8, { deadlineMs: 0, nowMs: () => nowMs++ });
  expect(late.found.missing.map(({ mode }) => mode)).toContain("hybrid");
  const words = "the time for the search ran out before a hybrid schedule was found";
  const text = renderPlan(late, undefined, { columns: 400, colour: false }).join("\n");
  for (const shown of [text, planPage("w", [late])]) {
    expect(shown).toContain(words);
    expect(shown).not.toMatch(/no plan of this mode is possible|no other is possible/);
  }
});

test("a plan that no run has measured says why it is chosen above one that was", () => {
  const one = plannedCase("w", 8);
  const [first, second, ...others] = one.found.alternatives as [PlannedMode, PlannedMode, ...PlannedMode[]];
  const measured = { ...second, measured: { seconds: 4.78, deviation: 0.02, samples: 4 } };
  const show = (alternatives: readonly PlannedMode[]) =>
    renderPlan({ ...one, found: { ...one.found, alternatives } }, undefined, { columns: 400, colour: false }).join(
      "\n",
    );
  expect(show([first, measured, ...others])).toMatch(
    new RegExp(`no run has measured it; it is chosen as .* are predicted, and the ${second.mode} plan took 4\\.78 s`),
  );
  expect(show([first, second, ...others])).not.toContain("no run has measured it");
});

test("a plan that was measured is shown with that, and why it is chosen where another is predicted to be faster", () => {
  const one = plannedCase("w", 8);
  const [first, second] = one.found.alternatives as [PlannedMode, PlannedMode];
  const measured = { ...second, measured: { seconds: 3, deviation: 0.02, samples: 4 } };
  const slower = { ...first, measured: { seconds: 3.01, deviation: 0.02, samples: 4 } };
  const tried = { ...one, found: { ...one.found, alternatives: [measured, slower] } };
  const text = renderPlan(tried, undefined, { columns: 200, colour: false }).join("\n");
  const seen =
    /measured: 3\.00 s a step ± 1\.3 %, 4 steps; predicted \d+ % too high: the fastest of those that are predicted near the best, with 57 % certainty/;
  expect(text).toMatch(seen);
  expect(planPage("w", [tried])).toMatch(seen);
});

test("where ranks are limited, page and text say so instead of that more devices bring nothing", () => {
  const one = plannedCase("w", 8);
  const atMost = [{ name: "actor<b>", by: "placement.wishes.maxRanks" as const }];
  const moreDevices = [{ components: ["actor<b>"], devices: 1, savedSeconds: 0, atMost }];
  const limited = { ...one, found: { ...one.found, moreDevices } };
  const text = renderPlan(limited, undefined, { columns: 200, colour: false }).join("\n");
  expect(text).toContain(
    "'actor<b>': all that placement.wishes.maxRanks allows, so more devices need a change of it first",
  );
  const page = planPage("w", [limited]);
  expect(page).toContain("all that placement.wishes.maxRanks allows");
  expect(page).not.toContain("no part would gain");
});

test("the page holds everything that it shows, and names are text in it", () => {
  const page = planPage("w", [plannedCase("w", 8), plannedCase("what if devices=16", 16)]);
  expect(page).not.toMatch(/(src|href)=/);
  expect(page).toContain("actor&lt;b&gt;");
  expect(page).not.toContain("actor<b>");
  expect(page).toMatch(/actor&lt;b&gt; → rollout, \d+ ranks?: disk<ul>/);
  expect(page).toContain("/w&lt;b&gt;");
  expect(page).not.toContain("/w<b>");
  expect(page).not.toMatch(/NaN|undefined|Infinity/);
});

describe("the command", () => {
  const folder = mkdtempSync(join(tmpdir(), "treadle-plan-"));
  afterAll(() => rmSync(folder, { recursive: true, force: true }));
  const root = resolve(import.meta.dirname, "../../..");
  const treadle = (...parameters: string[]) =>
    spawnSync(
      process.execPath,
      [join(root, "packages/cli/bin/treadle.js"), "plan", "workflows/emulated", ...parameters],
      {
        cwd: root,
        encoding: "utf8",
        timeout: 60_000,
      },
    );

  test("plans by a profile file, here and on another cluster", { timeout: 120_000 }, () => {
    const file = join(folder, "profile.json");
    const { "actor<b>": actor, rollout, reward } = profile.components;
    const renamed = {
      ...profile,
      graph: {
        ...profile.graph,
        components: { rollout: { methods: {} }, inference: { methods: {} }, actor: { methods: {} } },
        edges: [flow("rollout", "inference"), flow("inference", "actor")],
      },
      components: { rollout, inference: reward, actor },
    };
    writeFileSync(file, JSON.stringify(renamed));
    const { stdout, stderr, status } = treadle(
      "--profile",
      file,
      "--devices",
      "8",
      "--what-if",
      "devices=256",
      "--json",
    );
    expect(stderr).not.toContain("Error");
    expect(status).toBe(0);
    const { plans } = JSON.parse(stdout);
    expect(plans.map((plan: { devices: number }) => plan.devices)).toEqual([8, 256]);
    expect(plans[0].weights).toEqual([]); // its workers do not say what their engines are
    expect(plans[1].predicted.stepSeconds).toBeLessThan(plans[0].predicted.stepSeconds);
  });

  test("a what-if that leaves a wish no devices is told in its place, and the others are planned", {
    timeout: 120_000,
  }, () => {
    const { "actor<b>": actor, rollout, reward } = profile.components;
    const file = join(folder, "wished.json");
    const edges = [flow("rollout", "inference"), flow("inference", "actor")];
    const components = { rollout: { methods: {} }, inference: { methods: {} }, actor: { methods: {} } };
    const graph = { ...profile.graph, components, edges };
    writeFileSync(file, JSON.stringify({ ...profile, graph, components: { rollout, inference: reward, actor } }));
    const page = join(folder, "plan.html");
    const asked = ["--profile", file, "--devices", "4", "--set", "placement.wishes.freeDevices=3"];
    const whatIf = ["--what-if", "devices=2", "--what-if", "devices=8"];
    const shown = treadle(...asked, ...whatIf, "--html", page);
    expect(shown.stderr).not.toContain("Error");
    expect(shown.status).toBe(0);
    const reason = "placement.wishes.freeDevices: '3' names device 3";
    expect(shown.stdout.replaceAll(/\s+/g, " ")).toContain(`what if devices=2: no plan 2 cpu, batch 64 ${reason}`);
    expect(shown.stdout).toMatch(/what if devices=8: (temporal|spatial|hybrid), /);
    const text = readFileSync(page, "utf8");
    expect(text).toContain(`no plan: ${reason}`);
    const { plans } = JSON.parse(treadle(...asked, ...whatIf, "--json").stdout);
    type Told = { readonly predicted?: object; readonly refused?: { readonly code: string } };
    expect(plans.map((told: Told) => [told.predicted === undefined, told.refused?.code])).toEqual([
      [false, undefined],
      [true, "placement.invalid"],
      [false, undefined],
    ]);
    const none = treadle("--profile", file, "--devices", "2", "--set", "placement.wishes.freeDevices=3");
    expect(none.status).not.toBe(0);
  });

  test("without a profile says how to make one, and refuses what it does not understand", { timeout: 120_000 }, () => {
    const missing = treadle("--profile", join(folder, "none.json"));
    expect(missing.status).toBe(2);
    expect(missing.stderr).toContain("treadle profile");
    const file = join(folder, "renamed.json");
    writeFileSync(file, JSON.stringify(profile));
    const odd = treadle("--profile", file, "--what-if", "gpus=4");
    expect(odd.status).toBe(2);
    expect(odd.stderr.replaceAll(/\s+/g, " ")).toContain("'gpus' is none of 'devices', 'batch', 'staleness', 'cpu'");
  });
});
