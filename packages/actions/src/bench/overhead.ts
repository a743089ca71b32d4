/**
 * What the system adds to an action of 100 ms that holds no core while it runs (ARL-Tangram §6.4): decision, cores, driver,
 * the way there and back. Every driver, in turn, by a held shell and by a command, less what the same takes when a bare shell
 * is told to do it.
 */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { performance } from "node:perf_hooks";
import { median } from "@treadle/contracts";
import { DockerDriver } from "../drivers/docker-driver.ts";
import { dockerDriverLacks } from "../drivers/docker-engine.ts";
import { openDriver } from "../drivers/open-driver.ts";
import type { SandboxDriver } from "../drivers/sandbox.ts";
import { CpuManager } from "../managers/cpu.ts";
import { describeHost } from "../managers/host.ts";
import { ActionPool } from "../pool/action-pool.ts";
import { CommandActions } from "../pool/command-actions.ts";
import { ShellActions } from "../pool/shell-actions.ts";

export const actionMs = 100;

export type OverheadOptions = {
  /** of which the median counts, in each of which every way takes its turn */
  readonly rounds?: number | undefined;
  readonly actionsPerRound?: number | undefined;
  /** of the driver `docker`; by default TREADLE_DOCKER_IMAGE, and without one it is left out */
  readonly image?: string | undefined;
  readonly socket?: string | undefined;
};

export type Overhead = {
  readonly name: string;
  readonly milliseconds: number;
  /** a held shell whose cores are written to a control group */
  readonly isPromised: boolean;
};

type Way = {
  readonly name: string;
  readonly isPromised: boolean;
  readonly act: (cores: number) => Promise<unknown>;
  close(): Promise<void>;
};

/** Median of the rounds' medians: what an action took beyond what it takes in a bare shell in the same round. */
export async function measureOverhead(options: OverheadOptions = {}): Promise<Overhead[]> {
  const { rounds = 5, actionsPerRound = 8, image = process.env.TREADLE_DOCKER_IMAGE, socket } = options;
  const drivers: { name: string; make: () => Promise<SandboxDriver> }[] = [];
  for (const name of ["process", "cgroup"] as const)
    drivers.push({ name, make: () => openDriver({ drivers: [name] }) });
  if (image !== undefined && (await dockerDriverLacks(image, socket)) === undefined)
    for (const fastPath of [true, false])
      drivers.push({
        name: fastPath ? fastDocker : "docker, cores by 'update'",
        make: async () => new DockerDriver({ image, socket, fastPath }),
      });
  const ways: Way[] = [bareShell()];
  try {
    for (const { name, make } of drivers)
      for (const open of [heldShell, command]) {
        const driver = await make().catch(() => undefined);
        if (driver !== undefined) ways.push(await open(name, driver));
      }
    const numCores = describeHost().numa.flat().length;
    const medians = ways.map((): number[] => []);
    for (let round = 0; round < rounds; round++)
      for (const [i, { act }] of ways.entries()) {
        const times: number[] = [];
        // Another number of cores each time, so that they are moved.
        for (let n = 0; n < actionsPerRound; n++) {
          const startedMs = performance.now();
          await act(Math.min(numCores, 1 + (n % 2)));
          times.push(performance.now() - startedMs);
        }
        medians[i]!.push(median(times));
      }
    const [bare, ...others] = medians;
    return others.map((own, i) => ({
      name: ways[i + 1]!.name,
      isPromised: ways[i + 1]!.isPromised,
      milliseconds: median(own.map((milliseconds, round) => milliseconds - bare![round]!)),
    }));
  } finally {
    for (const way of ways) await way.close();
  }
}

const fastDocker = "docker, cores by control group";
const spec = (cpu: number) => ({ kind: "sleep", cost: { cpu } });
const pause = String(actionMs / 1000);
const poolOf = () => new ActionPool({ managers: [new CpuManager({ nodes: [describeHost()], overcommit: 8 })] });

async function heldShell(name: string, driver: SandboxDriver): Promise<Way> {
  const actions = new ShellActions({ pool: poolOf(), driver, scheduling: "action", sandboxes: "trajectory" });
  actions.openTrajectory("one");
  const act = (cores: number) => actions.run("one", spec(cores), { program: `sleep ${pause}` });
  await act(1);
  const isPromised = name === "cgroup" || name === fastDocker;
  return { name: `${name}: held shell`, isPromised, act, close: () => actions.close() };
}

async function command(name: string, driver: SandboxDriver): Promise<Way> {
  const actions = new CommandActions(poolOf(), driver);
  actions.openTrajectory("one");
  const act = (cores: number) => actions.submit("one", spec(cores), { command: ["sleep", pause] }).result;
  await act(1);
  return { name: `${name}: a command`, isPromised: false, act, close: () => actions.close() };
}

/** No system at all: a pipe to a shell, and one back. */
function bareShell(): Way {
  const shell = spawn("/bin/sh", [], { stdio: ["pipe", "pipe", "ignore"] });
  const act = (): Promise<unknown> => {
    const answered = once(shell.stdout, "data");
    shell.stdin.write(`sleep ${pause}; echo done\n`);
    return answered;
  };
  return { name: "bare shell", isPromised: false, act, close: async () => void shell.stdin.end() };
}
