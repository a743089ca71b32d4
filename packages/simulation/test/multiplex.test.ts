import { liveMethods } from "@treadle/multiplexer";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { compareMultiplex, DrawnRun, MultiplexScenario, multiplexScenarios, runShapes } from "../src/index.ts";
import { sharing } from "../src/multiplex/compare-multiplex.ts";
import { slowBeside } from "../src/multiplex/drawn-run.ts";
import { type Disaster, shareDevices } from "../src/multiplex/shared-devices.ts";
import type { SimulatedRun } from "../src/simulated-run.ts";

const seed = Number(process.env.TREADLE_SEED);
const never = Number.MAX_SAFE_INTEGER;
const names = (count: number) => Array.from({ length: count }, (_, i) => `gpu:${i}`);

const drawn = fc.record({
  seed: fc.nat(),
  devices: fc.integer({ min: 1, max: 3 }),
  runs: fc.array(
    fc.record({
      shape: fc.constantFrom(...Object.values(runShapes)),
      scale: fc.constantFrom(0.05, 0.3, 1),
      placement: fc.constantFrom("temporal" as const, "spatial" as const),
      maxStaleness: fc.nat(1),
      steps: fc.integer({ min: 1, max: 4 }),
      priority: fc.nat(1),
      weight: fc.constantFrom(0.5, 1, 2),
    }),
    { minLength: 2, maxLength: 3 },
  ),
  turnMs: fc.constantFrom(1, 5_000, never),
  patienceMs: fc.constantFrom(1, 60_000),
  residents: fc.integer({ min: 1, max: 3 }),
  messageMs: fc.constantFrom(0, 1, 400),
  keepsForSteps: fc.boolean(),
  disasters: fc.array(
    fc.record({ atMs: fc.nat(200_000), run: fc.nat(2), type: fc.constantFrom<Disaster["type"]>("kill", "stop") }),
    { maxLength: 5 },
  ),
});

type Drawn = typeof drawn extends fc.Arbitrary<infer T> ? T : never;

/** Shares the devices as drawn; `simulated` has every life of every run. */
function share({ seed, devices, runs, disasters, residents, ...rest }: Drawn, withDisasters: boolean) {
  const simulated = new Map<string, SimulatedRun[]>();
  const placed = runs.map(({ shape, scale, placement, maxStaleness, steps, priority, weight }, i) => {
    const run = new DrawnRun({ name: `run-${i}`, shape, scale, devices, seed });
    const place = { devices: names(devices), placement, maxStaleness, steps, keepsSpans: true };
    const member = sharing(run, place, { priority, weight });
    const alone = run.simulated(place);
    alone.execute();
    const make: typeof member.make = (firstStep, left, shared) => {
      const made = member.make(firstStep, left, shared);
      simulated.set(run.name, [...(simulated.get(run.name) ?? []), made]);
      return made;
    };
    const computing = alone.recorder
      .traces()
      .flatMap(({ records }) => records.filter((span) => span.category === "compute"));
    const workMs = computing.reduce((sum, { durationMs }) => sum + durationMs, 0);
    return { ...member, make, aloneMs: alone.nowMs, workMs, isInTurn: maxStaleness === 0 };
  });
  const { turnMs, patienceMs, messageMs, keepsForSteps } = rest;
  const limits = { residents, turnMs, patienceMs, yieldMs: never, beatLimitMs: withDisasters ? 15_000 : never };
  const struck = disasters.flatMap(({ run, ...each }) => (run < runs.length ? [{ ...each, run: `run-${run}` }] : []));
  const outcome = shareDevices({
    runs: placed,
    limits,
    messageMs,
    keepsForSteps,
    disasters: withDisasters ? struck : [],
  });
  return { outcome, placed, simulated };
}

/** No device computes for two runs at once. */
function expectTurns(simulated: ReadonlyMap<string, readonly SimulatedRun[]>): void {
  const spans = [...simulated].flatMap(([run, lives]) =>
    lives.flatMap(({ recorder }) =>
      recorder.traces().flatMap(({ records }) => {
        const computing = records.filter(({ category }) => category === "compute");
        return computing.flatMap(({ devices = [], startMs, durationMs }) => {
          return devices.map((device) => ({ run, device, startMs, endMs: startMs + durationMs }));
        });
      }),
    ),
  );
  const lastOn = new Map<string, (typeof spans)[number]>();
  for (const span of spans.toSorted((a, b) => a.startMs - b.startMs)) {
    const last = lastOn.get(span.device);
    if (last && last.run !== span.run)
      expect(span.startMs, `${span.device}: ${span.run} begins`).toBeGreaterThanOrEqual(last.endMs - 1e-6);
    if (!last || last.endMs < span.endMs) lastOn.set(span.device, span);
  }
}

describe("runs that share devices on virtual time", () => {
  test("all finish, no device computes for two at once, and sharing costs messages alone (PD2, LL1, L2)", () => {
    fc.assert(
      fc.property(drawn, (each) => {
        const { outcome, placed, simulated } = share(each, false);
        expectTurns(simulated);
        // At any time somebody computes, uses tools or has a message on its way.
        const workMs = placed.reduce((sum, run) => sum + run.workMs, 0);
        const messages = placed.reduce((sum, { steps }) => sum + 200 * steps * each.devices, 0);
        expect(outcome.makespanMs).toBeLessThanOrEqual(workMs + messages * each.messageMs + 1);
        for (const { name, steps, aloneMs, isInTurn } of placed) {
          const lives = simulated.get(name)!;
          expect(lives.map((run) => run.steps.length)).toEqual([steps]);
          // Steps that overlap may come in a better order beside others.
          if (isInTurn) expect(outcome.runs.get(name)!.doneMs).toBeGreaterThanOrEqual(aloneMs - 1e-6);
        }
      }),
      { numRuns: 60 },
    );
  });

  test("runs that are killed, or stop until the pool ends them, are resumed and finish; others are none the worse (PD7)", () => {
    fc.assert(
      fc.property(drawn, (each) => {
        const { outcome, placed, simulated } = share(each, true);
        expectTurns(simulated);
        for (const { name, steps } of placed) {
          const lives = simulated.get(name)!;
          expect(
            lives.reduce((sum, run) => sum + run.steps.length, 0),
            "each step is committed once",
          ).toBe(steps);
          const { lostSteps, deaths } = outcome.runs.get(name)!;
          expect(lostSteps).toBe(lives.length - 1);
          const numStruck = each.disasters.filter(({ run }) => `run-${run}` === name).length;
          expect(deaths, "nobody is ended who said that it was alive").toBeLessThanOrEqual(numStruck);
        }
      }),
      { numRuns: 60 },
    );
  });

  test("a run beside one that has finished is as fast as alone", () => {
    const [short, long] = ["short", "long"].map((name, i) => {
      return new DrawnRun({ name, shape: runShapes.tools, scale: i === 0 ? 0.001 : 1, devices: 2, seed });
    }) as [DrawnRun, DrawnRun];
    const place = { devices: names(2), placement: "temporal", maxStaleness: 0, steps: 5 } as const;
    const alone = long.simulated(place);
    alone.execute();
    const limits = { residents: 2, turnMs: 10, patienceMs: 1000, yieldMs: never, beatLimitMs: never };
    const { runs } = shareDevices({ runs: [sharing(short, place), sharing(long, place)], limits, messageMs: 0 });
    const shortMs = runs.get("short")!.doneMs;
    expect(runs.get("long")!.doneMs - alone.nowMs).toBeLessThanOrEqual(shortMs);
  });
});

test("runs whose rollout and training have devices of their own go beside each other: one rolls out while the other trains", () => {
  const runs = ["a", "b"].map((name) => new DrawnRun({ name, shape: runShapes.reasoning, scale: 1, devices: 2, seed }));
  const place = { devices: names(2), placement: "spatial", maxStaleness: 0, steps: 6 } as const;
  const serialMs = runs.reduce((sum, run) => {
    const alone = run.simulated(place);
    alone.execute();
    return sum + alone.nowMs;
  }, 0);
  const limits = { residents: 2, turnMs: 10_000, patienceMs: 60_000, yieldMs: never, beatLimitMs: never };
  const { makespanMs } = shareDevices({ runs: runs.map((run) => sharing(run, place)), limits, messageMs: 1 });
  expect(serialMs / makespanMs).toBeGreaterThan(1.3);
});

test("a run with a bound takes no longer than that, on however many devices, but for what a neighbour has under way and messages (PD8)", () => {
  fc.assert(
    fc.property(
      fc.nat(),
      fc.integer({ min: 1, max: 4 }),
      fc.constantFrom("temporal" as const, "spatial" as const),
      fc.constantFrom(1.05, 1.25, 1.5, 2),
      fc.constantFrom(...Object.values(runShapes)),
      fc.constantFrom(1_000, 30_000, never),
      (drawSeed, devices, placement, maxSlowdown, shape, turnMs) => {
        const [bounded, free] = ["bounded", "free"].map((name) => {
          return new DrawnRun({ name, shape, scale: 1, devices, seed: drawSeed });
        }) as [DrawnRun, DrawnRun];
        const steps = 12;
        const place = { devices: names(devices), placement, maxStaleness: 0, steps };
        const alone = bounded.simulated(place);
        alone.execute();
        const limits = { residents: 2, turnMs, patienceMs: 1_000, yieldMs: never, beatLimitMs: never };
        const runs = [
          sharing(bounded, place, { maxSlowdown }),
          sharing(free, { ...place, steps: 60 }, { priority: 9 }),
        ];
        const { doneMs } = shareDevices({ runs, limits, messageMs: 1 }).runs.get("bounded")!;
        const stages = Array.from({ length: 60 }, (_, step) => free.step(step + 1));
        const longestMs = Math.max(...stages.flatMap(({ rolloutMs, trainMs }) => [...rolloutMs, trainMs]));
        expect(doneMs).toBeLessThanOrEqual(maxSlowdown * (alone.nowMs + longestMs + 20 * steps));
      },
    ),
    // One rank of the run waited while another computed, which counted as no wait.
    { numRuns: 40, examples: [[263821919, 4, "temporal", 1.5, runShapes.reasoning, 1_000]] },
  );
});

describe("the comparison", () => {
  const scenario = MultiplexScenario.parse({ ...multiplexScenarios.exact, seed, draws: 3, deaths: 0 });
  const comparisons = [...compareMultiplex(scenario)];

  test("has every way of every setting; none is below its bound, nor the optimum above what leases do", () => {
    expect(comparisons.map(({ runs }) => runs.join())).toEqual(["reasoning,tools", "tools,tools"]);
    for (const { draws } of comparisons) {
      expect(draws).toHaveLength(3);
      for (const { serial, steps, leases, bound, optimum, parts } of draws) {
        expect(parts, "one device has no parts").toBeUndefined();
        for (const seconds of [serial, steps, leases, optimum!])
          expect(seconds).toBeGreaterThanOrEqual(bound * (1 - 1e-9));
        expect(leases).toBeGreaterThanOrEqual(optimum! * (1 - 1e-9));
        expect(optimum!).toBeLessThanOrEqual(serial * (1 + 1e-9));
      }
    }
  });

  test("whole steps in turns leave the device idle while tools run, which leases do not", () => {
    const tools = comparisons[1]!.draws;
    const mean = (of: (draw: (typeof tools)[number]) => number) => tools.reduce((sum, each) => sum + of(each), 0);
    expect(mean(({ leases }) => leases)).toBeLessThan(mean(({ steps }) => steps));
  });

  test("equal seeds give equal figures", () => {
    expect([...compareMultiplex(scenario)]).toEqual(comparisons);
  });
});

describe("runs that compute beside each other", () => {
  const table = slowBeside(1);
  const settings = fc.record({
    seed: fc.nat(),
    shapes: fc.array(fc.constantFrom(...Object.values(runShapes)), { minLength: 2, maxLength: 3 }),
    placement: fc.constantFrom("temporal" as const, "spatial" as const),
    method: fc.constantFrom(...liveMethods),
    deaths: fc.array(fc.record({ atMs: fc.nat(200_000), run: fc.nat(2) }), { maxLength: 2 }),
  });

  test("end all of their steps, never three on a device, and are measured as slow as they are (PD10, LL4, SM1)", () => {
    let numMeasured = 0;
    fc.assert(
      fc.property(settings, ({ seed, shapes, placement, method, deaths }) => {
        const placed = { devices: names(2), placement, maxStaleness: 0, steps: 8 };
        const runs = shapes.map((shape, i) => {
          return sharing(new DrawnRun({ name: `run-${i}`, shape, scale: 1, devices: 2, seed: seed + i }), placed);
        });
        const limits = {
          residents: runs.length,
          turnMs: 10_000,
          patienceMs: 60_000,
          yieldMs: never,
          beatLimitMs: 15_000,
        };
        const disasters = deaths.map(({ atMs, run }) => ({
          atMs,
          run: `run-${run % runs.length}`,
          type: "kill" as const,
        }));
        const { learnt } = shareDevices({
          runs,
          limits,
          disasters,
          messageMs: 1,
          besides: table,
          coRunner: { method },
        });
        for (const { work, beside, memory } of learnt!.model.known().pairs) {
          const found = learnt!.model.slowdown(work, beside, memory);
          if (found === undefined) continue;
          numMeasured++;
          const [own, other] = [work, beside].map((each) => each.split("/")[1]!);
          expect(Math.abs(found.factor / table(own!, other!) - 1), `${work} beside ${beside}`).toBeLessThan(0.03);
        }
        if (method === "temporal") expect(learnt!.model.known().pairs).toEqual([]);
      }),
      { seed, numRuns: 30 },
    );
    expect(numMeasured).toBeGreaterThan(20);
  });

  test("are compared with rollouts alone, with whoever comes, and with slowdowns that were measured before (CR4)", () => {
    const scenario = { runs: [["reasoning", "tools"]], placement: ["temporal"], draws: 2, devices: [3] } as const;
    const settings = MultiplexScenario.parse({ ...scenario, interference: [null, 0, 0.6] });
    const [apart, free, slowed] = [...compareMultiplex(settings)].map(({ draws }) => draws);
    for (const draw of apart!)
      for (const ratio of [draw.beside, draw.besideKnown, draw.rolloutsBeside, draw.alwaysBeside])
        expect(ratio).toBeUndefined();
    for (const [i, draw] of free!.entries()) {
      // What costs nothing is only late where it has to be measured.
      expect(draw.besideKnown!).toBeCloseTo(draw.alwaysBeside!, 6);
      expect(draw.alwaysBeside!).toBeLessThan(draw.beside!);
      expect(draw.alwaysBeside!).toBeLessThan(draw.rolloutsBeside!);
      expect(draw.rolloutsBeside!).toBeLessThan(draw.serial);
      const dear = slowed![i]!;
      expect(dear.alwaysBeside!).toBeGreaterThan(draw.alwaysBeside!);
      expect(dear.besideKnown!).toBeLessThan(dear.leases);
      expect([dear.serial, dear.serialOffPolicy]).toEqual([draw.serial, draw.serialOffPolicy]);
      expect(dear.serialOffPolicy).toBeLessThan(dear.serial);
    }
  });

  test("gain over taking turns where stages leave each other room, and stay within a bound (CR2, PD8)", () => {
    const scenario = { runs: [["reasoning", "reasoning"]], placement: ["temporal"], draws: 2, steps: 10 } as const;
    const settings = MultiplexScenario.parse({ ...scenario, interference: [0.6], maxSlowdown: [null, 1.3] });
    const [free, bound] = [...compareMultiplex(settings)].map(({ draws }) => draws);
    for (const draw of free!) {
      expect(draw.beside! * 1.15).toBeLessThan(draw.leases);
      expect(draw.misjudged!).toBeLessThan(0.03);
    }
    for (const { first } of bound!) expect(first).toBeLessThan(1.3 * 1.05);
  });
});
