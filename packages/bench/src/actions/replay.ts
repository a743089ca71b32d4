/**
 * A replayed agentic load with real commands in real sandboxes: what action-level scheduling is worth on this machine
 * (ARL-Tangram §6.2, §6.4 in small). Trajectories start together; each thinks, calls a tool, thinks again, and at the end
 * a test suite is its reward. Thinking is replayed by waiting, since a model would not use these cores.
 */

import { setTimeout as delay } from "node:timers/promises";
import type { DecideOptions } from "@treadle/actions";
import {
  ActionPool,
  CpuManager,
  describeHost,
  profileElasticity,
  ShellActions,
  type ShellActionsOptions,
} from "@treadle/actions";
import { median } from "@treadle/contracts";
import { systemClock } from "@treadle/transport";
import { type BenchRow, row } from "../row.ts";
import { nodeSuite, pytestSuite, type Suite } from "./suites.ts";

export type ReplayOptions = {
  readonly trajectories?: number | undefined;
  readonly turns?: number | undefined;
  /** of the suite, each in a process of its own */
  readonly testFiles?: number | undefined;
  /** steps of each way, in turn, of which the median counts */
  readonly rounds?: number | undefined;
  /** the reward; default: `testFiles` of Node */
  readonly suite?: Suite | undefined;
};

/** Of one step. ACT is over all actions; the reward is a suite of tests. Seconds and core-seconds. */
export type ReplayFigures = {
  readonly act: number;
  readonly reward: number;
  readonly step: number;
  /** cores that were held by somebody */
  readonly heldCoreSeconds: number;
  /** of those, spent in actions */
  readonly busyCoreSeconds: number;
  /** system overhead of actions by their execution */
  readonly overheadShare: number;
};

export type ReplayWay = { readonly name: string; readonly figures: ReplayFigures };
export type Replay = { readonly driver: string; readonly cores: number; readonly ways: readonly ReplayWay[] };

type Way = {
  readonly name: string;
  readonly scheduling: ShellActionsOptions["scheduling"];
  readonly decide: Partial<DecideOptions>;
};

const thinkingMs = 600;
const notMeasured = "a model: thinking is waiting; what else runs on these cores meets all ways in turn";

export async function replayActions(options: ReplayOptions = {}): Promise<Replay> {
  const { trajectories = 4, turns = 4, testFiles = 4, rounds = 3, suite = nodeSuite(testFiles) } = options;
  const { makeDriver } = suite;
  const host = describeHost();
  const cores = host.numa.flat();
  const ways: Way[] = [
    { name: "trajectory-level reservation of a core", scheduling: "trajectory", decide: {} },
    ...[...new Set([1, cores.length])].map((dop): Way => {
      return { name: `action-level, fixed DoP ${dop}`, scheduling: "action", decide: { policy: "fixed-dop", dop } };
    }),
    { name: "action-level, elastic", scheduling: "action", decide: { policy: "unit-aware" } },
  ];
  const { driver, elasticity, duration } = await profileSuite(suite, cores);
  const reward = {
    kind: "reward",
    cost: { cpu: { min: 1, max: cores.length } },
    key: "cpu",
    elasticity,
    duration,
  };

  const step = async ({ scheduling, decide }: Way): Promise<ReplayFigures> => {
    const pool = new ActionPool({
      managers: [new CpuManager({ nodes: [host], overcommit: 8 })],
      clock: systemClock,
      decide,
    });
    const actions = new ShellActions({ pool, driver: makeDriver(), scheduling, sandboxes: "trajectory" });
    const done: { kind: string; act: number; execution: number; overhead: number }[] = [];
    const run = async (
      trajectory: string,
      spec: Parameters<ShellActions["run"]>[1],
      program: string,
      args: readonly string[] = [],
    ) => {
      const result = await actions.run(trajectory, spec, { program, args });
      if (result.exitCode !== 0)
        throw new Error(
          `'${program}' ended as ${result.status} ${result.exitCode}: ${result.output.toString().slice(-400)}`,
        );
      const { queueingSeconds, executionSeconds: execution, overheadSeconds: overhead } = result;
      done.push({ kind: spec.kind, act: queueingSeconds + execution + overhead, execution, overhead });
    };
    const follow = async (i: number): Promise<void> => {
      const trajectory = `${i}`;
      const tool = { kind: "tool", cost: { cpu: 1 } };
      actions.openTrajectory(trajectory);
      // The first third think less, the last more, as lengths of responses differ.
      const think = () => delay(thinkingMs * (0.5 + (i % 3) / 2));
      await think();
      await run(trajectory, tool, suite.write.program, suite.write.args);
      for (let turn = 1; turn < turns; turn++) {
        await think();
        await run(trajectory, tool, suite.tool);
      }
      await think();
      // What was reserved for a trajectory is one core, which its reward then has as well.
      await run(
        trajectory,
        scheduling === "trajectory" ? { ...tool, kind: "reward" } : reward,
        suite.reward("$TREADLE_UNITS_CPU"),
      );
      await actions.closeTrajectory(trajectory);
    };
    const startedMs = systemClock.now();
    try {
      await Promise.all(Array.from({ length: trajectories }, (_, i) => follow(i)));
      const seconds = (systemClock.now() - startedMs) / 1000;
      const { heldSeconds, busySeconds } = actions.coreTime();
      const mean = (of: typeof done): number => of.reduce((sum, { act }) => sum + act, 0) / of.length;
      const total = (figure: "execution" | "overhead"): number => done.reduce((sum, one) => sum + one[figure], 0);
      return {
        act: mean(done),
        reward: mean(done.filter(({ kind }) => kind === "reward")),
        step: seconds,
        heldCoreSeconds: heldSeconds,
        busyCoreSeconds: busySeconds,
        overheadShare: total("overhead") / total("execution"),
      };
    } finally {
      await actions.close();
    }
  };

  const measured = ways.map((way) => ({ way, figures: [] as ReplayFigures[] }));
  // In turn, so that what else the machine does meets all of them.
  for (let round = 0; round < rounds; round++) for (const { way, figures } of measured) figures.push(await step(way));
  return {
    driver,
    cores: cores.length,
    ways: measured.map(({ way, figures }) => ({ name: way.name, figures: medianOf(figures) })),
  };
}

async function profileSuite({ makeDriver, write, reward }: Suite, cores: readonly number[]) {
  const driver = makeDriver();
  try {
    const profile = await profileElasticity({
      kind: "reward",
      template: ["sh", "-c", reward("{parallel}")],
      driver,
      cores,
      units: [...new Set([1, cores.length])],
      samples: 1,
      maxRuns: 3,
      prepare: async (sandbox) => {
        await sandbox.exec({ command: ["sh", "-c", write.program, "sh", ...write.args] });
      },
    });
    return { driver: driver.name, elasticity: profile.elasticity, duration: profile.duration };
  } finally {
    await driver.close();
  }
}

function medianOf(all: readonly ReplayFigures[]): ReplayFigures {
  const middle = (figure: keyof ReplayFigures): number => median(all.map((figures) => figures[figure]));
  return {
    act: middle("act"),
    reward: middle("reward"),
    step: middle("step"),
    heldCoreSeconds: middle("heldCoreSeconds"),
    busyCoreSeconds: middle("busyCoreSeconds"),
    overheadShare: middle("overheadShare"),
  };
}

/** Real commands in real sandboxes under each way of giving out cores, against a core reserved for each trajectory. */
export async function benchReplay(options: ReplayOptions = {}): Promise<BenchRow[]> {
  const { driver, cores, ways } = await replayActions(options);
  const [reservation] = ways;
  const rows: BenchRow[] = [];
  const figures = {
    act: ["mean ACT", "s"],
    reward: ["mean ACT of a reward", "s"],
    step: ["step", "s"],
    heldCoreSeconds: ["held", "core-s"],
    busyCoreSeconds: ["spent in actions", "core-s"],
    overheadShare: ["system overhead by execution", ""],
  } as const;
  for (const { name, figures: own } of ways) {
    for (const [key, [what, unit]] of Object.entries(figures) as [keyof typeof figures, readonly [string, string]][]) {
      const value = own[key];
      const isCompared = name !== reservation!.name && key !== "overheadShare";
      const baseline = isCompared ? reservation!.figures[key] : null;
      const against =
        baseline === null ? {} : { baseline, against: "a core reserved for each trajectory while it lives" };
      rows.push(
        row({ name: `${name}, ${driver} driver, ${cores} cores: ${what}`, value, unit, ...against, notMeasured }),
      );
    }
  }
  return rows;
}

/** The same with a suite of pytest in a root-owned /testbed as the reward. */
export async function benchPytest(): Promise<BenchRow[]> {
  const suite = await pytestSuite(4);
  if (typeof suite === "string")
    return [row({ name: "a suite of pytest as the reward", value: null, unit: "s", notMeasured: suite })];
  try {
    return await benchReplay({ suite });
  } finally {
    await suite.close();
  }
}
