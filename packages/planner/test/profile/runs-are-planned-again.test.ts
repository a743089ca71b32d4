import type { DeviceSpec, ObservedCall, Plan, Profile } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { resolvePlacement } from "../../src/placement.ts";
import { DriftDetector } from "../../src/profile/drift-detector.ts";
import { type KnownComponent, knownComponents } from "../../src/profile/known-components.ts";
import type { TrialStakes } from "../../src/profile/plan-trials.ts";
import { type PlanChange, ReplannerState } from "../../src/profile/replanner-state.ts";
import { layoutOf } from "../../src/profile/running-layout.ts";
import { observed } from "./observed-calls.ts";

const devices: DeviceSpec[] = [0, 1, 2, 3].map((index) => ({
  id: `cpu:${index}`,
  index,
  node: "node:0",
  kind: "cpu",
  memoryBytes: 2 ** 30,
}));
const components = [{ name: "rollout" }, { name: "inference" }, { name: "actor" }];
const options = {
  warmupSteps: 1,
  measuredSteps: 2,
  measuredSeconds: 60,
  trialRounds: 3,
  trialTolerance: 0.5,
  driftThreshold: 0.5,
  driftWindow: 3,
};
const modes = ["temporal", "spatial", "hybrid"] as const;
const planOf = (mode: Plan["mode"]) => resolvePlacement({ mode, components, devices, batchItems: 8, maxStaleness: 0 });

/** Seconds of a step by mode, and what the planner believes of them. */
type World = {
  readonly actual: Record<Plan["mode"], number>;
  readonly predicted: Record<Plan["mode"], number>;
  readonly planOf?: (mode: Plan["mode"]) => Plan;
};

function replanner(world: World, profile?: Profile, known?: ReadonlyMap<string, KnownComponent>) {
  return new ReplannerState({
    devices,
    components,
    batch: 8,
    maxStaleness: 0,
    traits: new Map(
      components.map(({ name }) => [name, { key: name, devicesPerRank: 1, minDevices: 1, maxDevices: 4 }]),
    ),
    header: { workflow: "test", createdAt: "2026-01-01T00:00:00Z", hardware: { key: "k", description: "" } },
    profile,
    known,
    propose: () =>
      modes
        .map((mode) => ({
          ...{ plan: (world.planOf ?? planOf)(mode), predictedSeconds: world.predicted[mode] },
          explanation: [`what limits ${mode}`],
        }))
        .toSorted((a, b) => a.predictedSeconds - b.predictedSeconds),
    options,
  });
}

/** What a component's call takes: 100 busy milliseconds where a test says nothing else. */
type Cost = { readonly busyMs?: number; readonly cpuMs?: number };

function callsOf(plan: Plan, step: number, cost: (component: string) => Cost = () => ({})): ObservedCall[] {
  return Object.entries(plan.components).flatMap(([component, { ranks }]) =>
    ranks.map((_, rank) =>
      observed(
        { component, rank, step, ...cost(component) },
        component === "rollout"
          ? {
              takes: [{ channel: "prompts", items: 8 / ranks.length }],
              puts: [{ channel: "episodes", items: 8 / ranks.length }],
            }
          : { takes: [{ channel: "episodes", items: 8 / ranks.length }] },
      ),
    ),
  );
}

/** Runs steps until a plan is chosen, or so many have passed. */
function run(
  state: ReplannerState,
  seconds: (plan: Plan) => number,
  first: PlanChange,
  mostSteps = 100,
  cost?: (component: string) => Cost,
  stakes?: TrialStakes,
): PlanChange[] {
  const changes = [first];
  for (let step = 1; step <= mostSteps && changes.at(-1)?.phase !== "chosen"; step++) {
    const { plan } = changes.at(-1) as PlanChange;
    const change = state.step(seconds(plan), callsOf(plan, step, cost), stakes);
    if (change) changes.push(change);
  }
  return changes;
}

/** Runs so many steps more, under whatever plan. */
function goOn(
  state: ReplannerState,
  first: Plan,
  numSteps: number,
  stepOf: (plan: Plan, step: number) => readonly [seconds: number, calls: ObservedCall[]],
): { changes: PlanChange[]; plan: Plan; news: string[] } {
  const changes: PlanChange[] = [];
  const news: string[] = [];
  let plan = first;
  for (let step = 1; step <= numSteps; step++) {
    const change = state.step(...stepOf(plan, step));
    if (change) changes.push(change);
    plan = change?.plan ?? plan;
    if (state.news !== undefined) news.push(state.news);
  }
  return { changes, plan, news };
}

describe("a run that is planned automatically", () => {
  test("measures first, then tries what is predicted to be near the best, then chooses (RP1, RP2)", () => {
    const world = {
      actual: { temporal: 4, spatial: 2, hybrid: 3 },
      predicted: { temporal: 9, spatial: 2.2, hybrid: 2 },
    };
    const state = replanner(world);
    const changes = run(state, (plan) => world.actual[plan.mode], state.start());
    expect(changes.map((change) => change.phase)).toContain("profiling");
    expect(changes.filter((change) => change.phase === "trial").map((change) => change.plan.mode)).toEqual([
      "hybrid",
      "spatial",
    ]);
    expect(changes.at(-1)).toMatchObject({ phase: "chosen", plan: { mode: "spatial" } });
    expect(state.profile?.components["rollout"]?.samples.length).toBeGreaterThan(1);
    expect(state.observes).toBe(false);
  });

  test("measures no more than one step before it tries plans where other workflows have measured all components (RP1)", () => {
    const world = {
      actual: { temporal: 4, spatial: 2, hybrid: 3 },
      predicted: { temporal: 9, spatial: 2.2, hybrid: 2 },
    };
    const traits = new Map(
      components.map(({ name }) => [name, { key: name, devicesPerRank: 1, minDevices: 1, maxDevices: 4 }]),
    );
    const other = replanner(world);
    run(other, (plan) => world.actual[plan.mode], other.start());
    const measured = { ...(other.profile as Profile), workflow: "other" };
    const all = knownComponents([measured], { traits, hardwareKey: "k", batch: 8 });
    expect([...all.keys()]).toEqual(components.map(({ name }) => name));
    const searchWith = (known: ReadonlyMap<string, KnownComponent>) => {
      const state = replanner(world, undefined, known);
      let probed = 0;
      const changes = [state.start()];
      for (let step = 1; changes.at(-1)?.phase !== "chosen"; step++) {
        const { plan, phase } = changes.at(-1) as PlanChange;
        if (phase === "profiling") probed++;
        const change = state.step(world.actual[plan.mode], callsOf(plan, step));
        if (change) changes.push(change);
      }
      return { state, probed, layouts: changes.filter(({ phase }) => phase === "profiling").length, changes };
    };
    const none = searchWith(new Map());
    const whole = searchWith(all);
    const { warmupSteps, measuredSteps } = options;
    expect(none.probed).toBe(none.layouts * (warmupSteps + measuredSteps));
    expect(none.layouts).toBeGreaterThan(2);
    expect(whole).toMatchObject({ layouts: 1, probed: warmupSteps + 1 });
    for (const { name } of components)
      expect(whole.state.profile?.components[name]?.samples).toEqual(measured.components[name]?.samples);
    // The plans that are near the best are tried as ever, so the choice rests on what this run has measured.
    expect(whole.changes.at(-1)).toMatchObject({ phase: "chosen", plan: { mode: "spatial" } });
    // Where one is not known, its layouts have to run, with whomever; the others need none of their own.
    const one = searchWith(new Map([...all].slice(1)));
    expect(one.probed).toBe(one.layouts * (warmupSteps + measuredSteps));
    expect(one.layouts).toBe(none.layouts);
  });

  test("measures what another workflow has measured where it takes another time here, and says so (RP1)", () => {
    const world = {
      actual: { temporal: 4, spatial: 2, hybrid: 3 },
      predicted: { temporal: 9, spatial: 2.2, hybrid: 2 },
    };
    const traits = new Map(
      components.map(({ name }) => [name, { key: name, devicesPerRank: 1, minDevices: 1, maxDevices: 4 }]),
    );
    const planned = (first: number, known?: ReadonlyMap<string, KnownComponent>, later = first) => {
      const state = replanner(world, undefined, known);
      const changes = [state.start()];
      for (let step = 1; changes.at(-1)?.phase !== "chosen"; step++) {
        const { plan } = changes.at(-1) as PlanChange;
        const busyMs = changes.length === 1 ? first : later;
        const calls = callsOf(plan, step, (name) => (name === "rollout" ? { busyMs } : {}));
        const change = state.step(world.actual[plan.mode], calls);
        if (change) changes.push(change);
      }
      const profile = state.profile as Profile;
      const samplesOf = (name: string) => profile.components[name]?.samples;
      return { profile, samplesOf, why: changes.flatMap(({ why }) => why) };
    };
    const other = planned(100);
    const measured = { ...other.profile, workflow: "other" };
    const known = knownComponents([measured], { traits, hardwareKey: "k", batch: 8 });
    const [first, ...rest] = components.map(({ name }) => name);
    expect(first).toBe("rollout");
    // Larger items, or smaller ones.
    for (const factor of [30, 1.6, 1 / 30]) {
      const here = planned(100 * factor, known);
      expect(here.samplesOf("rollout")).toEqual(planned(100 * factor).samplesOf("rollout"));
      expect(here.profile.components["rollout"]).not.toHaveProperty("measuredBy");
      expect(here.why).toContainEqual(
        expect.stringMatching(/^'rollout' was measured by 'other', but takes .* time here/),
      );
      for (const name of rest) expect(here.why).not.toContain(`'${name}' was measured by 'other', but`);
    }
    // The first layout tells nothing of it, and others, which run for the sake of those that are not known, do.
    const turned = planned(100, new Map([...known].slice(0, 1)), 3000);
    expect(turned.profile.components["rollout"]).not.toHaveProperty("measuredBy");
    expect(turned.samplesOf("rollout")?.map(({ devices }) => devices)).toEqual(
      other.samplesOf("rollout")?.map(({ devices }) => devices),
    );
    const near = planned(110, known);
    expect(near.samplesOf("rollout")).toEqual(other.samplesOf("rollout"));
    expect(near.why).toContain("'rollout' was measured by 'other'");
    // It remains the other's, whichever workflow reuses it next.
    const { createdAt } = measured;
    expect(near.profile.components["rollout"]?.measuredBy).toEqual({ workflow: "other", createdAt });
    const next = { ...near.profile, workflow: "next", createdAt: "2026-03-03T00:00:00Z" };
    const again = knownComponents([next], { traits, hardwareKey: "k", batch: 8 });
    expect([...again.values()].map(({ measuredBy }) => measuredBy.workflow)).toEqual(components.map(() => "other"));
  });

  test("chooses the fastest, as measured, of all plans predicted near the best", () => {
    const times = fc.record({
      temporal: fc.integer({ min: 10, max: 100 }),
      spatial: fc.integer({ min: 10, max: 100 }),
      hybrid: fc.integer({ min: 10, max: 100 }),
    });
    fc.assert(
      fc.property(times, times, (actual, predicted) => {
        const state = replanner({ actual, predicted });
        const last = run(state, (plan) => actual[plan.mode], state.start()).at(-1) as PlanChange;
        expect(last.phase).toBe("chosen");
        // Whoever is left out was predicted to be slower than what the chosen one really took.
        const chosen = actual[last.plan.mode];
        for (const mode of modes)
          if (actual[mode] < chosen) expect(predicted[mode]).toBeGreaterThan(chosen * (1 + options.trialTolerance));
      }),
    );
  });

  test("says what limits the plan that it chose, once, whichever was predicted to be the fastest", () => {
    for (const chosen of modes) {
      const actual = { temporal: 20, spatial: 20, hybrid: 20, [chosen]: 10 };
      const state = replanner({ actual, predicted: { temporal: 10, spatial: 11, hybrid: 12 } });
      const changes = run(state, (plan) => actual[plan.mode], state.start());
      expect(changes.at(-1)?.plan.mode).toBe(chosen);
      const told = changes.flatMap(({ why }) => why).filter((line) => line.startsWith("what limits"));
      expect(told).toEqual([...new Set(["what limits temporal", `what limits ${chosen}`])]);
      expect(changes.at(-1)?.why.join()).toContain(`${chosen} is the fastest of those that were tried with`);
    }
  });

  test("says that predictions are of an undisturbed machine where the fastest plan took longer, and only there", () => {
    for (const [took, isSaid] of [
      [10, false],
      [20, true],
    ] as const) {
      const world = { temporal: took, spatial: took, hybrid: took };
      const state = replanner({ actual: world, predicted: { temporal: 10, spatial: 10, hybrid: 10 } });
      const why = run(state, () => took, state.start())
        .at(-1)
        ?.why.join("; ");
      const said = "predictions are of a machine that nothing else uses";
      if (isSaid) expect(why).toContain(said);
      else expect(why).not.toContain(said);
    }
  });

  test("probes layouts whose steps are long for fewer of them, whose steps differ for more, and tries plans all the same (RP5, RP6)", () => {
    const numProbed = (seconds: readonly number[], stepsLeft = Number.POSITIVE_INFINITY): number[] => {
      const state = replanner({ actual, predicted: { temporal: 9, spatial: 2, hybrid: 9 } });
      let steps = 0;
      const changes = run(state, () => seconds[steps++ % seconds.length]!, state.start(), 100, undefined, {
        ...{ stepsLeft, changeSeconds: 0 },
      });
      const probed = new Set(
        changes.filter(({ phase }) => phase === "profiling").map(({ plan }) => layoutOf(plan).name),
      );
      return (state.profile?.steps ?? []).flatMap(({ layout, samples }) =>
        probed.has(layout) && layout !== layoutOf(planOf("temporal")).name ? [samples] : [],
      );
    };
    const actual = { temporal: 1, spatial: 1, hybrid: 1 };
    const { measuredSteps, measuredSeconds } = options;
    expect(new Set(numProbed([1]))).toEqual(new Set([measuredSteps]));
    expect(new Set(numProbed([measuredSeconds]))).toEqual(new Set([1]));
    expect(new Set(numProbed([1, 1.01]))).toEqual(new Set([measuredSteps]));
    expect(new Set(numProbed([1, 2]))).toEqual(new Set([4 * measuredSteps]));
    expect(new Set(numProbed([measuredSeconds / 4, measuredSeconds / 2]))).toEqual(new Set([3]));
    expect(new Set(numProbed([1, 2], 60))).toEqual(new Set([3]));
    expect(new Set(numProbed([1, 2], 10))).toEqual(new Set([measuredSteps]));
  });

  test("says of how many devices each component has ranks while it is measured, which may be fewer than it could", () => {
    const limited = [{ name: "rollout" }, { name: "actor", devicesPerRank: 1, ranks: { max: 1 } }];
    const state = new ReplannerState({
      ...{ devices, components: limited, batch: 8, maxStaleness: 0, options },
      traits: new Map(
        limited.map(({ name }) => [name, { key: name, devicesPerRank: 1, minDevices: 1, maxDevices: 4 }]),
      ),
      header: { workflow: "test", createdAt: "2026-01-01T00:00:00Z", hardware: { key: "k", description: "" } },
      propose: () => [],
    });
    const changes = run(state, () => 1, state.start());
    const probes = changes.filter(({ why }) => why[0]?.startsWith("measuring all components in turn"));
    expect(probes.length).toBeGreaterThan(1);
    for (const { plan, why } of probes) {
      for (const [name, { ranks }] of Object.entries(plan.components))
        expect(why[0]).toContain(`'${name}' on ${new Set(ranks.flatMap((rank) => rank.devices)).size},`);
      expect(why[0]).toContain("'actor' on 1,");
    }
  });

  test("counts no step of the first seconds under a plan, in which processes are slow, where steps are short (RP4)", () => {
    const measured = (seconds: readonly number[]): ReadonlySet<number> => {
      const state = replanner({
        actual: { temporal: 1, spatial: 1, hybrid: 1 },
        predicted: { temporal: 9, spatial: 1, hybrid: 9 },
      });
      let [last, steps] = ["", 0];
      const stepOf = (plan: Plan): number => {
        const { name } = layoutOf(plan);
        steps = name === last ? steps + 1 : 0;
        last = name;
        return seconds[Math.min(steps, seconds.length - 1)]!;
      };
      run(state, stepOf, state.start());
      return new Set((state.profile?.steps ?? []).map(({ seconds }) => seconds));
    };
    const launched = 5;
    expect(measured([launched, 1.1, 0.9, 0.8])).toEqual(new Set([0.8]));
    expect(measured([launched, 1.5, 1.4])).toEqual(new Set([1.4]));
    expect(measured([launched, 0.3, 0.2, 0.1]), "few, however short").toEqual(new Set([0.1]));
    expect(measured([launched, 2.5]), "long ones count").toEqual(new Set([2.5]));
    const long = replanner({
      actual: { temporal: 3, spatial: 3, hybrid: 3 },
      predicted: { temporal: 3, spatial: 9, hybrid: 9 },
    });
    const { measuredSteps, warmupSteps } = options;
    const changes = run(long, () => 3, long.start(), warmupSteps + measuredSteps);
    expect(changes.length, "and none of them is left out").toBe(2);
  });

  test("weighs what a trial costs with all of its steps, those that short ones leave out included (RP2, RP4)", () => {
    const { warmupSteps, measuredSteps } = options;
    const probed = replanner({
      actual: { temporal: 1, spatial: 1, hybrid: 1 },
      predicted: { temporal: 1, spatial: 9, hybrid: 9 },
    });
    run(probed, () => 1, probed.start());
    /** steps that have to be left, before a plan that is predicted to be slower is tried */
    const leastSteps = (seconds: number): number => {
      const predicted = { temporal: seconds, spatial: 1.45 * seconds, hybrid: 9 * seconds };
      const layout = layoutOf(planOf("temporal")).name;
      const known = {
        ...probed.profile!.steps.find((step) => step.layout === layout)!,
        seconds,
        deviation: 0,
        samples: 9,
      };
      const profile = { ...probed.profile!, steps: [known] };
      for (let stepsLeft = 1; ; stepsLeft++) {
        const { phase } = replanner({ actual: predicted, predicted }, profile).start({ stepsLeft, changeSeconds: 0 });
        if (phase === "trial") return stepsLeft;
      }
    };
    const ratio = leastSteps(0.1) / leastSteps(3);
    expect(ratio).toBeCloseTo((3 * warmupSteps + measuredSteps) / (warmupSteps + measuredSteps), 1);
  });

  test("measures nothing again with the profile of an earlier run, and tries nothing that it tried (RP1)", () => {
    const world = {
      actual: { temporal: 4, spatial: 2, hybrid: 3 },
      predicted: { temporal: 2, spatial: 2, hybrid: 2 },
    };
    const first = replanner(world);
    run(first, (plan) => world.actual[plan.mode], first.start());
    const again = replanner(world, first.profile).start();
    expect(again).toMatchObject({ phase: "chosen", plan: { mode: "spatial" } });
  });

  test("plans again when steps drift, and stays where nothing is better (RP3)", () => {
    const actual = { temporal: 4, spatial: 2, hybrid: 3 };
    const world = { actual, predicted: { temporal: 2, spatial: 2, hybrid: 2 } };
    const state = replanner(world);
    const chosen = run(state, (plan) => actual[plan.mode], state.start()).at(-1) as PlanChange;
    expect(chosen.plan.mode).toBe("spatial");
    actual.spatial = 10; // the devices of the actor have become slow
    const { changes, plan } = goOn(state, chosen.plan, 60, (now, step) => [
      actual[now.mode],
      callsOf(now, step, (component) => (component === "actor" && now.mode === "spatial" ? { busyMs: 900 } : {})),
    ]);
    expect(changes[0]?.why.join(" ")).toContain("400 % more time than expected ('actor' 800 % more)");
    expect(changes.at(-1)).toMatchObject({ phase: "chosen", plan: { mode: "hybrid" } });
    expect(plan.mode).toBe("hybrid");
  });

  test("tells the plan that ran from another of its mode, and calls nothing of it predicted (RP3)", () => {
    const compared = (isProposedAgain: boolean): string[] => {
      let isPlannedAgain = false;
      const finer = (mode: Plan["mode"]): Plan => {
        const plan = planOf(mode);
        return { ...plan, granularity: { ...plan.granularity, channels: { episodes: 2 } } };
      };
      const actual = { temporal: 9, spatial: 9, hybrid: 2 };
      const world: World = {
        actual,
        predicted: { temporal: 9, spatial: 9, hybrid: 7 },
        planOf: (mode) => (isPlannedAgain && !isProposedAgain ? finer(mode) : planOf(mode)),
      };
      const state = replanner(world);
      const chosen = run(state, (plan) => actual[plan.mode], state.start()).at(-1) as PlanChange;
      isPlannedAgain = true;
      const { changes } = goOn(state, chosen.plan, 60, (now, step) => [
        now.mode !== "hybrid" ? 20 : now.granularity.channels["episodes"] === 2 ? 6 : 6.01,
        callsOf(now, step, (component) => (component === "actor" ? { busyMs: 900 } : {})),
      ]);
      return changes.at(-1)!.why.filter((line) => / took | fastest | faster |^chosen/.test(line));
    };
    const differing = compared(false).filter((line) => !/^(temporal|spatial) took/.test(line));
    expect(differing).toEqual([
      expect.stringMatching(/^hybrid \('episodes' 2 at a time\) took 6\.00 s a step .*, where 7\.00 s were predicted$/),
      expect.stringMatching(
        /^hybrid \('episodes' 1 at a time\) took 6\.01 s a step .*, measured as it ran; nothing was predicted of it$/,
      ),
      expect.stringMatching(
        /^hybrid \('episodes' 2 at a time\) is the fastest of those that were tried with more than 99 %/,
      ),
      expect.stringMatching(
        /^hybrid \('episodes' 2 at a time\) is faster than the plan that ran before with [5-8]\d %/,
      ),
      "chosen: hybrid ('episodes' 2 at a time), expected to take 6.00 s a step",
    ]);
    expect(compared(true).at(0)).toMatch(/^hybrid took 6\.01 s .*, where 7\.00 s were predicted$/);
  });

  test("stays with its plan, and says so, when all components slow alike or processors are only shared (RP3)", () => {
    const slowdowns = fc.array(fc.double({ min: 0.2, max: 6, noNaN: true }), { minLength: 1, maxLength: 6 });
    // By component: what share of its time a processor works for it when it is alone.
    const shares = fc.tuple(...components.map(() => fc.constantFrom(0, 0.05, 0.95, 1)));
    fc.assert(
      fc.property(slowdowns, shares, fc.boolean(), (factors, byComponent, isSteal) => {
        const world = { temporal: 1, spatial: 1, hybrid: 1 };
        const state = replanner({ actual: world, predicted: world });
        const shareOf = (component: string) => byComponent[components.findIndex(({ name }) => name === component)] ?? 0;
        const costs = (factor: number) => (component: string) => {
          const share = shareOf(component);
          // Others who use the processors slow what computes, by whatever they take; or everything becomes slower.
          const own = isSteal && share < 0.1 ? 1 : factor;
          return { busyMs: 100 * own, cpuMs: 100 * share * (isSteal ? 1 : factor) };
        };
        const chosen = run(state, () => 1, state.start(), 100, costs(1)).at(-1) as PlanChange;
        let expected = 1;
        for (const factor of factors) {
          const steps = goOn(state, chosen.plan, 20, (now, step) => [factor, callsOf(now, step, costs(factor))]);
          expect(steps.changes).toEqual([]);
          const hasDrifted = Math.max(factor / expected, expected / factor) > 1 + options.driftThreshold;
          expect(steps.news).toEqual(hasDrifted ? [expect.stringContaining("the plan stays")] : []);
          if (hasDrifted) expected = factor;
        }
      }),
      { numRuns: 60 },
    );
  });

  test("plans again whichever component becomes slower or faster by itself, on a machine of any load (RP3)", () => {
    const factors = fc.constantFrom(0.3, 2.5, 4);
    fc.assert(
      fc.property(
        fc.nat(2),
        factors,
        fc.constantFrom(0, 1),
        fc.double({ min: 1, max: 4, noNaN: true }),
        (who, own, share, load) => {
          const world = { temporal: 1, spatial: 1, hybrid: 1 };
          const state = replanner({ actual: world, predicted: world });
          const costs = (isDrifted: boolean) => (component: string) => {
            const work = 100 * (isDrifted && component === components[who]?.name ? own : 1);
            return { busyMs: work * (share > 0 ? load : 1), cpuMs: work * share };
          };
          const chosen = run(state, () => load, state.start(), 100, costs(false)).at(-1) as PlanChange;
          const { changes } = goOn(state, chosen.plan, 20, (now, step) => [
            load * (own > 1 ? own : 0.5),
            callsOf(now, step, costs(true)),
          ]);
          expect(changes[0]?.why.join(" ")).toContain(`'${components[who]?.name}'`);
        },
      ),
    );
  });

  test("tries nothing that the steps left cannot pay for, and says so (RP2, PT3)", () => {
    const world = {
      actual: { temporal: 4, spatial: 2, hybrid: 2.1 },
      predicted: { temporal: 9, spatial: 2, hybrid: 2.05 },
    };
    const phases = (stepsLeft: number) => {
      const state = replanner(world);
      const stakes = { stepsLeft, changeSeconds: 10 };
      const changes = [state.start(stakes)];
      for (let step = 1; step < 100 && changes.at(-1)?.phase !== "chosen"; step++) {
        const { plan } = changes.at(-1) as PlanChange;
        const change = state.step(world.actual[plan.mode], callsOf(plan, step), stakes);
        if (change) changes.push(change);
      }
      return changes;
    };
    const trials = (changes: PlanChange[]) =>
      changes.flatMap(({ phase, plan }) => (phase === "trial" ? [plan.mode] : []));
    const long = phases(10_000);
    expect(trials(long)).toEqual(expect.arrayContaining(["spatial", "hybrid"]));
    const short = phases(12);
    expect(trials(short)).toEqual(["spatial"]);
    expect(short.at(-1)).toMatchObject({ phase: "chosen", plan: { mode: "spatial" } });
    expect(short.at(-1)?.why.join("; ")).toContain("cost more than the 12 steps that are left can gain");
  });

  test("does not count the first steps under a plan (RP4)", () => {
    const state = replanner({
      actual: { temporal: 1, spatial: 1, hybrid: 1 },
      predicted: { temporal: 1, spatial: 1, hybrid: 1 },
    });
    const { plan } = state.start();
    state.step(1000, callsOf(plan, 1));
    state.step(1, callsOf(plan, 2));
    state.step(1, callsOf(plan, 3));
    run(state, () => 1, { plan, phase: "profiling", why: [] });
    expect(state.profile?.steps.find((step) => step.layout === layoutOf(plan).name)?.seconds).toBe(1);
  });
});

describe("drift", () => {
  test("is a median outside of the band, not a single step", () => {
    const drift = new DriftDetector({ window: 3, threshold: 0.5 }, 1);
    expect([1, 9, 1, 1, 1].map((seconds) => drift.observe(seconds))).toEqual(Array(5).fill(undefined));
    expect([2, 2].map((seconds) => drift.observe(seconds))).toEqual([undefined, 2]);
  });

  test("takes the first full window as its reference where nothing was expected", () => {
    const drift = new DriftDetector({ window: 3, threshold: 0.5 });
    expect([4, 5, 6, 5, 5, 5].map((seconds) => drift.observe(seconds)).every((found) => found === undefined)).toBe(
      true,
    );
    expect(drift.reference).toBe(5);
  });
});
