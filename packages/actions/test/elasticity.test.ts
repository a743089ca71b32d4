import fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import { contention, parseCoreTicks } from "../src/elasticity/contention.ts";
import { analyseSamples, ElasticityProfile } from "../src/elasticity/elasticity-profile.ts";
import { fillTemplate, parallelTemplate } from "../src/elasticity/parallel-command.ts";
import { parseTimes, profileElasticity } from "../src/elasticity/profile-elasticity.ts";
import { type Elasticity, ProcessDriver, secondsAt } from "../src/index.ts";

describe("a parallel test command", () => {
  test.each([
    [
      ["pytest", "-q"],
      ["pytest", "-n", "4", "-q"],
    ],
    [
      ["pytest", "-n", "auto", "tests"],
      ["pytest", "-n", "4", "tests"],
    ],
    [
      ["pytest", "-n8"],
      ["pytest", "-n", "4"],
    ],
    [
      ["python3", "-m", "pytest", "a.py"],
      ["python3", "-m", "pytest", "-n", "4", "a.py"],
    ],
    [["/usr/bin/pytest"], ["/usr/bin/pytest", "-n", "4"]],
    [
      ["npx", "vitest", "run", "a"],
      ["npx", "vitest", "run", "--maxWorkers", "4", "a"],
    ],
    [
      ["vitest", "--maxWorkers=2"],
      ["vitest", "--maxWorkers", "4"],
    ],
    [
      ["node", "--test", "test/"],
      ["node", "--test", "--test-concurrency=4", "test/"],
    ],
    [
      ["make", "-j{parallel}", "test"],
      ["make", "-j4", "test"],
    ],
  ])("%j becomes %j on four units", (command, expected) => {
    expect(fillTemplate(parallelTemplate(command)!, 4)).toEqual(expected);
  });

  test.each([[["make", "test"]], [["node", "test.js"]], [["echo", "pytest"]]])(
    "%j has no place for a number",
    (command) => {
      expect(parallelTemplate(command)).toBeUndefined();
    },
  );
});

describe("contention", () => {
  const stat = (busy: number, idle: number) =>
    parseCoreTicks(`cpu  9 9 9\ncpu0 ${busy} 0 0 ${idle} 0 0 0 0 0 0\nintr 5\n`);

  test("is what cores did beyond the command's own time", () => {
    expect(contention(stat(100, 100), stat(200, 100), [0], 1)).toBe(0);
    expect(contention(stat(100, 100), stat(200, 100), [0], 0.5)).toBeCloseTo(0.48, 6);
    expect(contention(stat(100, 100), stat(100, 200), [0], 0)).toBe(0);
    expect(contention(stat(0, 0), stat(0, 0), [0, 7], 0)).toBe(0);
  });

  test("times are read as the shell prints them", () => {
    expect(parseTimes("0m0.010s 0m0.020s\n1m2.500s 0m0.25s\n")).toBeCloseTo(62.78, 6);
  });
});

describe("what follows from samples", () => {
  const samplesOf = (units: number[], seconds: (units: number) => number) =>
    units.map((m) => ({ units: m, seconds: seconds(m), accepted: 3, rejected: 0, contended: false }));

  test("Amdahl's law is found again, and its table gives back the seconds", () => {
    fc.assert(
      fc.property(
        fc.double({ min: 0, max: 1, noNaN: true }),
        fc.double({ min: 0.1, max: 500, noNaN: true }),
        fc.uniqueArray(fc.integer({ min: 2, max: 64 }), { minLength: 1, maxLength: 6 }),
        (serial, duration, more) => {
          const units = [1, ...more.sort((a, b) => a - b)];
          const samples = samplesOf(units, (m) => duration * (serial + (1 - serial) / m));
          const { fit, elasticity, convex, duration: one } = analyseSamples(samples);
          expect(fit.serialShare).toBeCloseTo(serial, 5);
          expect(fit.relativeError).toBeLessThan(1e-6);
          expect(one).toBeCloseTo(duration, 6);
          for (const { units: m, seconds } of samples)
            expect(secondsAt(elasticity as Elasticity, m, one)).toBeCloseTo(seconds, 6);
          if (serial < 0.99) expect(convex).toBe(true);
        },
      ),
    );
  });

  test("a number of units that is slower than a mix of others is told", () => {
    const { convex, wasteful } = analyseSamples(samplesOf([1, 2, 4, 8], (m) => ({ 1: 10, 2: 9, 4: 3, 8: 2 })[m]!));
    expect(convex).toBe(false);
    expect(wasteful).toEqual([2]);
  });

  test("more than m times as fast on m units counts as m times", () => {
    const { elasticity } = analyseSamples(samplesOf([1, 2], (m) => (m === 1 ? 10 : 4)));
    expect(elasticity.points).toEqual([
      { units: 1, efficiency: 1 },
      { units: 2, efficiency: 1 },
    ]);
  });
});

describe("measuring", () => {
  const cleanups: (() => unknown)[] = [];
  afterEach(async () => {
    for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
  });
  const driver = () => {
    const made = new ProcessDriver();
    cleanups.push(() => made.close());
    return made;
  };

  test("a command that sleeps for 0.8 s divided by its units is found to gain evenly, whoever uses the cores", async () => {
    const runs: number[] = [];
    const profile = await profileElasticity({
      kind: "sleep",
      template: ["sh", "-c", "sleep $(echo {parallel} | sed 's/1/1.6/; s/2/0.8/')"],
      driver: driver(),
      cores: [0, 1],
      units: [1, 2],
      samples: 1,
      maxRuns: 1,
      tolerance: 1,
      onRun: ({ units }) => runs.push(units),
    });
    expect(ElasticityProfile.parse(JSON.parse(JSON.stringify(profile)))).toEqual(profile);
    expect(runs).toEqual([1, 2]);
    expect(profile.samples.map((s) => s.seconds > (s.units === 1 ? 1.6 : 0.8))).toEqual([true, true]);
    expect(profile.samples[0]!.seconds).toBeGreaterThan(profile.samples[1]!.seconds);
    expect(profile.driver).toBe("process");
  });

  test("runs beside a burner of the same core are rejected, and the profile says so", async () => {
    const own = driver();
    const burning = new AbortController();
    const burner = await own.open();
    const burn = burner.exec({ command: ["sh", "-c", "while :; do :; done"], cores: [0], signal: burning.signal });
    const profile = await profileElasticity({
      kind: "loop",
      template: ["sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+{parallel})); done"],
      driver: own,
      cores: [0],
      units: [1],
      samples: 1,
      maxRuns: 2,
    });
    burning.abort();
    await burn;
    expect(profile.samples).toMatchObject([{ units: 1, accepted: 0, rejected: 2, contended: true }]);
  });

  test("a command that fails ends the measurement with its last words", async () => {
    const failing = profileElasticity({
      kind: "bad",
      template: ["sh", "-c", "echo first; echo no such test >&2; exit 3"],
      driver: driver(),
      cores: [0],
      units: [1],
    });
    await expect(failing).rejects.toMatchObject({
      code: "action.failed",
      message: expect.stringMatching(/exit code 3.*no such test/s),
    });
  });
});
