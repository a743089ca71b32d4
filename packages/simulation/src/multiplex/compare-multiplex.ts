/** Runs that share devices by leases, next to the same runs one after the other, on halves, and by whole steps. */
import type { PoolLimits } from "@treadle/core";
import { createRandom, type Random } from "@treadle/learning";
import { type CoRunner, solveMultiplex } from "@treadle/multiplexer";
import { normal } from "../durations.ts";
import { DrawnRun, type Placed, runShapes, slowBeside } from "./drawn-run.ts";
import { type PlainSharing, plainSharing } from "./plain-sharing.ts";
import type { MultiplexScenario } from "./scenario.ts";
import {
  componentOf,
  type Disaster,
  type SharingOptions,
  type SharingOutcome,
  type SharingRun,
  type SlowBeside,
  shareDevices,
} from "./shared-devices.ts";

/** Seconds from the first step's begin to the last one's end. */
export type MultiplexDraw = {
  /** one run after the other, each on all devices, in the better placement in hindsight */
  readonly serial: number;
  /** the same, where each run may be a step off-policy */
  readonly serialOffPolicy: number;
  /** each on its part of the devices, in the better placement in hindsight; undefined with fewer devices than runs */
  readonly parts: number | undefined;
  /** in turns of whole steps */
  readonly steps: number;
  /** by leases */
  readonly leases: number;
  /** by leases of works that compute beside each other where that gains; undefined where nothing is said of what that costs */
  readonly beside: number | undefined;
  /** the same, by slowdowns that were measured before, as a pool keeps them */
  readonly besideKnown: number | undefined;
  /** the same, of rollouts alone, and of whoever comes, two at once on a device: nobody measures what that costs */
  readonly rolloutsBeside: number | undefined;
  readonly alwaysBeside: number | undefined;
  /** the largest difference between a slowdown that was measured meanwhile and the one of the table, as a part of it */
  readonly misjudged: number | undefined;
  /** by leases, on devices that no schedule can be faster on: the busiest one's work, or the longest run alone */
  readonly bound: number;
  /** what the best schedule takes that knows all durations; of one device alone, and undefined where it was not found */
  readonly optimum: number | undefined;
  /** by leases, beside each other where they may be, against the run alone: of the first one, and of the one that is slowed down most */
  readonly first: number;
  readonly slowdown: number;
  readonly deaths: number;
};

export type MultiplexComparison = {
  readonly devices: number;
  readonly runs: MultiplexScenario["runs"][number];
  readonly placement: MultiplexScenario["placement"][number];
  readonly maxStaleness: number;
  /** of the first run */
  readonly maxSlowdown: number | null;
  readonly interference: number | null;
  readonly draws: readonly MultiplexDraw[];
};

type Setting = Omit<MultiplexComparison, "draws">;

/** A search of more actions than this is given up. */
const optimumLimit = 300_000;
const memoryMiB = 1024;
const never = Number.MAX_SAFE_INTEGER;

/** Every setting, as it is simulated. */
export function* compareMultiplex(scenario: MultiplexScenario): Generator<MultiplexComparison> {
  const random = createRandom(scenario.seed);
  for (const devices of scenario.devices)
    for (const runs of scenario.runs)
      for (const placement of scenario.placement)
        for (const maxStaleness of scenario.maxStaleness)
          for (const maxSlowdown of scenario.maxSlowdown)
            for (const interference of scenario.interference) {
              const setting = { devices, runs, placement, maxStaleness, maxSlowdown, interference };
              const draws = Array.from({ length: scenario.draws }, (_, draw) => {
                return compareDraw(scenario, setting, random.split(`${runs}`).split(draw));
              });
              yield { ...setting, draws };
            }
}

function compareDraw(scenario: MultiplexScenario, setting: Setting, random: Random): MultiplexDraw {
  const { devices, placement, maxStaleness } = setting;
  const { steps } = scenario;
  const runs = setting.runs.map((shape, index) => {
    const scale = Math.exp(scenario.scaleSd * normal(random.split("scale").split(index)));
    const seed = random
      .split("seed")
      .split(index)
      .integer(2 ** 32);
    return new DrawnRun({ name: `${shape}-${index}`, shape: runShapes[shape], scale, devices, seed });
  });
  const all = names(devices);
  const placed = { devices: all, placement, maxStaleness, steps };
  const alone = runs.map((run) => executed(run, placed));
  const aloneMs = alone.map(({ nowMs }) => nowMs);
  const serialMs = runs.reduce((sum, run) => sum + bestAlone(run, placed), 0);
  const busiestMs = Math.max(
    ...all.map((device) => alone.reduce((sum, { recorder }) => sum + recorder.onDevice(device).computeMs, 0)),
  );
  const limits: PoolLimits = {
    residents: runs.length,
    turnMs: scenario.turnSeconds * 1000,
    patienceMs: scenario.patienceSeconds * 1000,
    yieldMs: never,
    beatLimitMs: scenario.deaths > 0 ? 15_000 : never,
  };
  const share = (options: Pick<SharingOptions, "keepsForSteps" | "disasters" | "besides" | "coRunner" | "policy">) => {
    const members = runs.map((run, index) => {
      return sharing(run, placed, index === 0 ? { maxSlowdown: setting.maxSlowdown ?? undefined } : {});
    });
    return shareDevices({ runs: members, limits, messageMs: scenario.messageSeconds * 1000, ...options });
  };
  const longestMs = Math.max(...aloneMs) * runs.length;
  const leases = share({ disasters: drawDisasters(scenario, runs, longestMs, random.split("disasters")) });
  const { interference } = setting;
  const { method, window } = scenario;
  const table = interference === null ? undefined : slowBeside(interference);
  const beside = table && share({ besides: table, coRunner: { method, window } });
  const known = beside?.learnt?.model.known();
  const withKnown = known && share({ besides: table, coRunner: { method, window, known } });
  const sharedBy = (rule: PlainSharing) =>
    table && inSeconds(share({ besides: table, policy: plainSharing(rule) }).makespanMs);
  const off = { ...placed, maxStaleness: Math.max(1, maxStaleness) };
  const shown = beside ?? leases;
  const slowdown = runs.map(({ name }, i) => doneMs(shown, name) / (aloneMs[i] as number));
  return {
    serial: inSeconds(serialMs),
    serialOffPolicy: inSeconds(runs.reduce((sum, run) => sum + bestAlone(run, off), 0)),
    parts: devices < runs.length ? undefined : inSeconds(Math.max(...partsOf(runs, placed))),
    steps: inSeconds(share({ keepsForSteps: true }).makespanMs),
    leases: inSeconds(leases.makespanMs),
    beside: beside && inSeconds(beside.makespanMs),
    besideKnown: withKnown && inSeconds(withKnown.makespanMs),
    rolloutsBeside: sharedBy("rollouts"),
    alwaysBeside: sharedBy("always"),
    misjudged: table && misjudged(beside?.learnt, table),
    bound: inSeconds(Math.max(busiestMs, ...aloneMs)),
    optimum: devices === 1 ? optimumOf(runs, steps) : undefined,
    first: slowdown[0] as number,
    slowdown: Math.max(...slowdown),
    deaths: [...shown.runs.values()].reduce((sum, { deaths }) => sum + deaths, 0),
  };
}

/** Of pairs that were measured. */
function misjudged(learnt: CoRunner | undefined, table: SlowBeside): number {
  const { pairs = [] } = learnt?.model.known() ?? {};
  const errors = pairs.flatMap(({ work, beside, memory }) => {
    const found = learnt?.model.slowdown(work, beside, memory);
    return found === undefined ? [] : [Math.abs(found.factor / table(componentOf(work), componentOf(beside)) - 1)];
  });
  return Math.max(0, ...errors);
}

const inSeconds = (ms: number): number => ms / 1000;
const doneMs = (outcome: SharingOutcome, run: string): number => (outcome.runs.get(run) as { doneMs: number }).doneMs;
const names = (count: number, from = 0): string[] => Array.from({ length: count }, (_, i) => `gpu:${from + i}`);

function executed(run: DrawnRun, placed: Placed) {
  const simulated = run.simulated(placed);
  simulated.execute();
  return simulated;
}

/** Drawn runs that share devices by leases, each in turns of `turnSeconds`. */
export function shareDrawnRuns(
  runs: readonly DrawnRun[],
  placed: Omit<Placed, "devices"> & {
    readonly devices: number;
    readonly turnSeconds: number;
    /** works compute beside each other, and are that much slower then */
    readonly besides?: SlowBeside | undefined;
  },
): SharingOutcome {
  const { turnSeconds, devices, besides, ...rest } = placed;
  const members = runs.map((run) => sharing(run, { ...rest, devices: names(devices) }));
  const limits = {
    ...{ residents: runs.length, turnMs: turnSeconds * 1000, patienceMs: 60_000 },
    ...{ yieldMs: never, beatLimitMs: never },
  };
  return shareDevices({ runs: members, limits, messageMs: 1, besides });
}

/** What a run is to the pool, with all devices of its plan. */
export function sharing(run: DrawnRun, placed: Placed, traits: Partial<SharingRun["member"]> = {}): SharingRun {
  return {
    name: run.name,
    steps: placed.steps,
    member: {
      ...{ priority: 0, weight: 1 },
      devices: placed.devices.map((id) => ({ id, memoryMiB })),
      ...traits,
    },
    make: (firstStep, steps, shared) => run.simulated({ ...placed, steps, firstStep, shared }),
  };
}

/** Milliseconds of each run on devices of its own, as equal in number as can be. */
function partsOf(runs: readonly DrawnRun[], placed: Placed): number[] {
  const count = placed.devices.length;
  return runs.map((run, i) => {
    const from = Math.floor((i * count) / runs.length);
    const devices = names(Math.floor(((i + 1) * count) / runs.length) - from, from);
    return bestAlone(run, { ...placed, devices });
  });
}

/** Milliseconds in the better placement in hindsight. */
function bestAlone(run: DrawnRun, placed: Placed): number {
  const times = (["temporal", "spatial"] as const).map((placement) => executed(run, { ...placed, placement }).nowMs);
  return Math.min(...times);
}

/** Each run has so many deaths on average, at any time. */
function drawDisasters(
  { deaths }: MultiplexScenario,
  runs: readonly DrawnRun[],
  lastMs: number,
  random: Random,
): Disaster[] {
  return runs.flatMap(({ name }) => {
    const own = random.split(name);
    const count = Math.floor(deaths * 2 * own.float() + 0.5);
    return Array.from({ length: count }, (): Disaster => {
      return { atMs: own.float() * lastMs, run: name, type: own.float() < 0.5 ? "kill" : "stop" };
    });
  });
}

/** Seconds of the best schedule, idling included, in which no two runs use the device at once. */
function optimumOf(runs: readonly DrawnRun[], steps: number): number | undefined {
  const substages = runs.flatMap((run) => {
    let last: string[] = [];
    return Array.from({ length: steps }, (_, index) => {
      const { rolloutMs, toolsMs, trainMs } = run.step(index + 1);
      const stages = [
        { part: "rollout", worker: 0, ms: Math.max(...rolloutMs) },
        ...(toolsMs > 0 ? [{ part: "tools", worker: null, ms: toolsMs }] : []),
        { part: "train", worker: 0, ms: trainMs },
      ];
      return stages.map(({ part, worker, ms }) => {
        const id = `${run.name} ${part} ${index}`;
        const memory = worker === null ? {} : { mem: 1 };
        const stage = { id, pipeline: run.name, worker, type: part, dur: inSeconds(ms), deps: last, ...memory };
        last = [id];
        return stage;
      });
    }).flat();
  });
  const problem = { workers: 1, memory: 1, substages, limit: optimumLimit };
  const { makespan, complete } = solveMultiplex(problem, { method: "optimum" });
  return complete && makespan !== null ? makespan : undefined;
}
