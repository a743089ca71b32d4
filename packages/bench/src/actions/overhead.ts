/**
 * What the system adds to an action of 100 ms that holds no core while it runs (ARL-Tangram §6.4): decision, cores, driver,
 * the way there and back. Every driver, by a held shell and by a command. `sleep 0.1` takes more than 100 ms however it is
 * started, so that every action is followed by the same by hand: a line to a shell that is there, or a process started here;
 * for containers, in one of the same image, by the engine alone. Over gRPC, the service is another process. A call that does
 * nothing, just as rare, tells what gRPC takes by itself. Before, each way and the same by hand are taken up to 200 times without the
 * pause, as a service has run for a while.
 */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { performance } from "node:perf_hooks";
import type { Readable, Writable } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import {
  ActionPool,
  CommandActions,
  CpuManager,
  cgroupDriverLacks,
  describeHost,
  openDriver,
  type SandboxDriver,
  ShellActions,
} from "@treadle/actions";
import { DockerDriver, dockerDriverLacks } from "@treadle/actions/docker";
import { baseEnvironment } from "@treadle/actions/internal";
import { median } from "@treadle/contracts";
import { type BenchRow, row } from "../row.ts";
import { containerByHand } from "./docker-by-hand.ts";
import { openServiceClient } from "./over-grpc.ts";

const actionMs = 100;
/** of each way, and of the same by hand, at most */
const warmUp = { times: 200, ms: 10_000 };
const notMeasured =
  "several actions at once; a queue; TREADLE_DOCKER_IMAGE names the image without which docker is left out";

type OverheadOptions = {
  /** of each way */
  readonly actions?: number | undefined;
  /** of the driver `docker`; by default TREADLE_DOCKER_IMAGE, and without one it is left out */
  readonly image?: string | undefined;
  readonly socket?: string | undefined;
};

type Overhead = {
  readonly name: string;
  /** median of what an action took beyond the same by hand */
  readonly beyondByHandMs: number;
  /** median of what an action took beyond its nominal 100 ms */
  readonly beyondNominalMs: number;
  /** the latter of the same by hand */
  readonly byHandBeyondNominalMs: number;
  /** in a sandbox that isolates, whose cores are written to a control group */
  readonly isPromised: boolean;
};

type Pausing = (seconds: number) => Promise<unknown>;
/** A shell that is there, and a command of its own. */
type ByHand = { readonly shell: Pausing; readonly command: Pausing };
type Act = (cores: number, seconds: number) => Promise<unknown>;
type Way = {
  readonly name: string;
  readonly isPromised: boolean;
  readonly act: Act;
  readonly byHand: Pausing;
  close(): Promise<void>;
};

/** The ways take turns, action by action, each right before the same by hand: what the machine does meets both. */
async function measureOverhead(options: OverheadOptions = {}): Promise<Overhead[]> {
  const { actions = 40, image = process.env.TREADLE_DOCKER_IMAGE, socket } = options;
  const shell = spawn("/bin/sh", [], { stdio: ["pipe", "pipe", "ignore"] });
  const here: ByHand = {
    shell: (seconds) => answerOf(shell.stdin, shell.stdout, seconds),
    command: (seconds) => once(spawn("sleep", [String(seconds)], { env: { ...baseEnvironment } }), "close"),
  };
  const drivers: { name: string; make: () => Promise<SandboxDriver>; byHand: ByHand }[] = [];
  for (const name of ["process", "cgroup"] as const)
    drivers.push({ name, make: () => openDriver({ drivers: [name] }), byHand: here });
  const container =
    image !== undefined && (await dockerDriverLacks(image, socket)) === undefined
      ? await containerByHand(image, socket)
      : undefined;
  const inside = await container?.shell();
  if (container !== undefined)
    for (const fastPath of [true, false])
      drivers.push({
        name: `docker, cores by ${fastPath ? "control group" : "'update'"}`,
        make: async () => new DockerDriver({ image: image!, socket, fastPath }),
        byHand: {
          shell: (seconds) => answerOf(inside!, inside!, seconds),
          command: (seconds) => container.exec(["sleep", String(seconds)]),
        },
      });
  const ways: Way[] = [];
  try {
    for (const { name, make, byHand } of drivers)
      for (const open of [heldShell, command]) {
        const driver = await make().catch(() => undefined);
        if (driver !== undefined) ways.push(await open(name, driver, byHand));
      }
    ways.push(...(await overGrpc(here)));
    const numCores = describeHost().numa.flat().length;
    // Another number of cores each time, so that they are moved.
    const coresOf = (n: number): number => Math.min(numCores, 1 + (n % 2));
    for (const { act, byHand } of ways)
      for (
        let n = 0, startedMs = performance.now();
        n < warmUp.times && performance.now() - startedMs < warmUp.ms;
        n++
      ) {
        await act(coresOf(n), 0);
        await byHand(0);
      }
    const times = ways.map(() => ({ own: [] as number[], byHand: [] as number[] }));
    for (let n = 0; n < actions; n++)
      for (const [i, { act, byHand }] of ways.entries()) {
        times[i]!.own.push(await timed(() => act(coresOf(n), pauseSeconds)));
        times[i]!.byHand.push(await timed(() => byHand(pauseSeconds)));
      }
    return ways.map(({ name, isPromised }, i) => {
      const { own, byHand } = times[i]!;
      return {
        name,
        isPromised,
        beyondByHandMs: median(own.map((milliseconds, n) => milliseconds - byHand[n]!)),
        beyondNominalMs: median(own) - actionMs,
        byHandBeyondNominalMs: median(byHand) - actionMs,
      };
    });
  } finally {
    for (const way of ways) await way.close();
    shell.stdin.end();
    inside?.destroy();
    await container?.remove();
  }
}

async function timed(run: () => Promise<unknown>): Promise<number> {
  const startedMs = performance.now();
  await run();
  return performance.now() - startedMs;
}

const spec = (cpu: number) => ({ kind: "sleep", cost: { cpu } });
const pauseSeconds = actionMs / 1000;
const poolOf = () => new ActionPool({ managers: [new CpuManager({ nodes: [describeHost()], overcommit: 8 })] });

function answerOf(input: Writable, output: Readable, seconds: number): Promise<unknown> {
  const answered = once(output, "data");
  input.write(`sleep ${seconds}; echo done\n`);
  return answered;
}

async function heldShell(name: string, driver: SandboxDriver, byHand: ByHand): Promise<Way> {
  const actions = new ShellActions({ pool: poolOf(), driver, scheduling: "action", sandboxes: "trajectory" });
  actions.openTrajectory("one");
  const act: Act = (cores, seconds) => actions.run("one", spec(cores), { program: `sleep ${seconds}` });
  const isPromised = name === "cgroup";
  return { name: `${name}: held shell`, isPromised, act, byHand: byHand.shell, close: () => actions.close() };
}

async function command(name: string, driver: SandboxDriver, byHand: ByHand): Promise<Way> {
  const actions = new CommandActions(poolOf(), driver);
  actions.openTrajectory("one");
  const act: Act = (cores, seconds) =>
    actions.submit("one", spec(cores), { command: ["sleep", String(seconds)] }).result;
  const isPromised = name === "cgroup";
  return { name: `${name}: a command`, isPromised, act, byHand: byHand.command, close: () => actions.close() };
}

/** Of a service in another process, by the first driver that works here; the other way is a call that does nothing, after a pause. */
async function overGrpc(byHand: ByHand): Promise<Way[]> {
  const driver = cgroupDriverLacks() === undefined ? "cgroup" : "process";
  const client = await openServiceClient(driver);
  const name = `${driver} over gRPC`;
  const act: Act = (cores, seconds) => client.run(["sleep", String(seconds)], cores);
  const call: Act = async (_, seconds) => {
    await delay(1000 * seconds);
    await client.call();
  };
  return [
    { name: `${name}: a command`, isPromised: false, act, byHand: byHand.command, close: () => client.close() },
    {
      name: `${name}: a call that does nothing`,
      isPromised: false,
      act: call,
      byHand: (seconds) => delay(1000 * seconds),
      close: async () => {},
    },
  ];
}

/** What the system adds to an action of 100 ms, by driver; in sandboxes of bubblewrap below 3 % of it. */
export async function benchOverhead(): Promise<BenchRow[]> {
  const against = { unit: "ms", baseline: actionMs, against: "the 100 ms of the action", notMeasured };
  return (await measureOverhead()).flatMap(
    ({ name, beyondByHandMs, beyondNominalMs, byHandBeyondNominalMs, isPromised }) => [
      row({
        name: `${name}: what an action takes beyond the same by hand`,
        value: beyondByHandMs,
        ...against,
        ...(isPromised ? { ratioAtMost: 0.03 } : {}),
      }),
      row({
        name: `${name}: beyond 100 ms, of which by hand ${byHandBeyondNominalMs.toFixed(1)} ms`,
        value: beyondNominalMs,
        ...against,
      }),
    ],
  );
}
