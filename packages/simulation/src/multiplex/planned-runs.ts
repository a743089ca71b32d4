/** Planned runs beside each other on the devices of one pool, on virtual time: what each of them loses, and what all gain. */
import { type DeviceSpec, type Plan, type PoolConfig, type Profile, TreadleError } from "@treadle/contracts";
import { canKeepBounds, type PoolLimits } from "@treadle/core";
import { simulatedRun, workerMemory } from "../simulate.ts";
import { shareDevices } from "./shared-devices.ts";

export type PlannedRun = {
  readonly name: string;
  readonly profile: Profile;
  readonly plan: Plan;
  /** those that the plan may use */
  readonly devices: readonly DeviceSpec[];
  readonly pool: PoolConfig;
};

export type RunBeside = {
  readonly name: string;
  readonly steps: number;
  /** of a step: without the others, and beside them */
  readonly aloneSeconds: number;
  readonly besideSeconds: number;
  /** how many times as long all its steps take beside the others */
  readonly slowdown: number;
  /** of its time beside them: it had devices, or waited for some and had none */
  readonly leasedShare: number;
  readonly waitedShare: number;
};

export type Beside = {
  readonly runs: readonly RunBeside[];
  /** until the last of them has done its steps */
  readonly seconds: number;
  /** of the same steps, one run after the other */
  readonly serialSeconds: number;
};

/** Each run does as many steps as take about as long alone as so many of the run whose steps are longest, and as so many turns. */
const stepsOfLongest = 10;
const turnsOfAll = 6;
const mostSteps = 5000;
const probedSteps = 4;
const messageMs = 1;

/**
 * The first one joins the others. Throws `placement.impossible` for runs that a pool would not let in together, and for a component
 * that needs more memory than its run's part of a device; `problem.invalid` for runs whose steps, or turns, are too far apart; and
 * what `simulate` throws.
 */
export function simulateBeside(runs: readonly PlannedRun[], limits: PoolLimits, seed = 0): Beside {
  checkTogether(runs, limits.residents);
  const inParts = runs.map((run) => withPart(run, limits.residents));
  const stepSeconds = inParts.map((run) => aloneMs(run, probedSteps, seed) / 1000 / probedSteps);
  const turnsSeconds = (turnsOfAll * limits.turnMs) / 1000;
  const windowSeconds = Math.max(stepsOfLongest * Math.max(...stepSeconds), turnsSeconds);
  const steps = stepSeconds.map((seconds, i) => stepsIn(windowSeconds, seconds, runs[i]!.name));
  const alone = inParts.map((run, i) => aloneMs(run, steps[i]!, seed) / 1000);
  const members = inParts.map((run, i) => ({
    name: run.name,
    steps: steps[i]!,
    member: {
      ...run.pool,
      devices: runs[i]!.devices.map(({ id, memoryBytes }) => ({ id, memoryMiB: memoryBytes / 2 ** 20 })),
    },
    make: (_firstStep: number, left: number, shared: Parameters<typeof simulatedRun>[1]) =>
      simulatedRun({ ...run, steps: left, seed }, shared).run,
  }));
  const [newcomer, ...others] = members;
  const { runs: outcomes, makespanMs } = shareDevices({ runs: [...others, newcomer!], limits, messageMs });
  return {
    seconds: makespanMs / 1000,
    serialSeconds: alone.reduce((sum, seconds) => sum + seconds, 0),
    runs: inParts.map(({ name }, i) => {
      const { doneMs, leasedMs, waitedMs } = outcomes.get(name)!;
      return {
        name,
        steps: steps[i]!,
        aloneSeconds: alone[i]! / steps[i]!,
        besideSeconds: doneMs / 1000 / steps[i]!,
        slowdown: doneMs / 1000 / alone[i]!,
        leasedShare: leasedMs / doneMs,
        waitedShare: waitedMs / doneMs,
      };
    }),
  };
}

function stepsIn(windowSeconds: number, stepSeconds: number, name: string): number {
  const steps = Math.max(1, Math.round(windowSeconds / stepSeconds));
  if (steps <= mostSteps) return steps;
  throw new TreadleError(
    "problem.invalid",
    `run '${name}' has steps of ${stepSeconds.toPrecision(2)} s, of which ${mostSteps} are simulated at most; beside it, steps and turns of ${windowSeconds.toPrecision(2)} s in all are too long: give shorter turns, or compare runs whose steps are more alike`,
  );
}

/** As a pool lets runs in: of one device, all have their memory and can keep their bounds. */
function checkTogether(runs: readonly PlannedRun[], residents: number): void {
  const sharing = new Map<string, PlannedRun[]>();
  for (const run of runs) for (const { id } of run.devices) sharing.set(id, [...(sharing.get(id) ?? []), run]);
  const refused = (why: string) =>
    new TreadleError("placement.impossible", `${why}; one of them would wait until the others have ended`);
  for (const [id, on] of sharing) {
    const names = on.map(({ name }) => `'${name}'`).join(" and ");
    const bounds = on.map(({ pool }) => pool.maxSlowdown);
    if (on.length > 1 && !canKeepBounds(bounds)) {
      const said = bounds.map((bound) => bound ?? "none").join(", ");
      throw refused(`${names} share '${id}', and their bounds of pool.maxSlowdown (${said}) cannot be kept together`);
    }
    const has = Math.min(...on.map((run) => run.devices.find((device) => device.id === id)!.memoryBytes)) / 2 ** 20;
    const asked = on.reduce((sum, { pool }) => sum + (pool.memoryPerDeviceMiB ?? has / residents), 0);
    if (asked > has + 1e-6)
      throw refused(
        `${names} ask for ${Math.ceil(asked)} MiB of '${id}', which has ${Math.floor(has)}: who says no pool.memoryPerDeviceMiB asks for an equal part`,
      );
  }
}

function aloneMs(run: PlannedRun, steps: number, seed: number): number {
  const { run: alone } = simulatedRun({ ...run, steps, seed });
  alone.execute();
  return alone.nowMs;
}

/** With its part of each device's memory, which its workers have beside those of the others. */
function withPart(run: PlannedRun, residents: number): PlannedRun {
  const { memoryPerDeviceMiB } = run.pool;
  const partOf = ({ memoryBytes }: DeviceSpec): number =>
    memoryPerDeviceMiB === undefined ? memoryBytes / residents : Math.min(memoryBytes, memoryPerDeviceMiB * 2 ** 20);
  const devices = run.devices.map((device) => ({ ...device, memoryBytes: partOf(device) }));
  const parts = new Map(devices.map(({ id, memoryBytes }) => [id, memoryBytes]));
  for (const component of simulatedRun({ ...run, devices, steps: 1, seed: 0 }).model.components) {
    const needed = workerMemory(component).memoryBytes;
    for (const id of component.ranks.flatMap((rank) => rank.devices)) {
      const part = parts.get(id) ?? Number.POSITIVE_INFINITY;
      if (needed <= part) continue;
      const [needs, has] = [needed, part].map((bytes) => Math.ceil(bytes / 2 ** 20));
      throw new TreadleError(
        "placement.impossible",
        `'${component.name}' of '${run.name}' needs ${needs} MiB of '${id}', where the run's part is ${has} MiB beside ${residents - 1} other; give it more by pool.memoryPerDeviceMiB, or share with fewer runs`,
        { details: { component: component.name, device: id } },
      );
    }
  }
  return { ...run, devices };
}
