/** What it costs that commands run on hosts, as other processes of this machine, and a thousand sandboxes on several of them. */
import {
  ActionPool,
  CgroupDriver,
  CommandActions,
  CpuManager,
  cgroupDriverLacks,
  ProcessDriver,
  type SandboxDriver,
} from "@treadle/actions";
import { HostsDriver } from "@treadle/actions/internal";
import { median } from "@treadle/contracts";
import { z } from "zod";
import { type BenchRow, row, timed } from "../row.ts";
import { type Child, startChild } from "../runtime/network/child.ts";

const numSandboxes = 1000;
const numHosts = 4;
const numActions = 40;
const actionMs = 100;
const atOnce = 16;
const notMeasured = "a network between service and hosts; more cores than this machine has";

type Machines = { readonly actions: CommandActions; close(): Promise<void> };

/** One driver in this process, or as many hosts; the same cores in all. */
function actionsOf(driver: SandboxDriver, cpu: CpuManager): CommandActions {
  return new CommandActions(new ActionPool({ managers: [cpu] }), driver);
}
const managerOf = (): CpuManager => new CpuManager({ nodes: [], overcommit: 8, trajectoryMemoryBytes: 4 * 2 ** 20 });

function here(driver: SandboxDriver, memoryBytes: number): Machines {
  const cpu = managerOf();
  cpu.join({ id: "here", numa: [[0]], memoryBytes });
  const actions = actionsOf(driver, cpu);
  return { actions, close: () => actions.close() };
}

async function onHosts(driver: "cgroup" | "process", count: number): Promise<Machines> {
  const children: Child[] = [];
  const close = async (): Promise<void> => {
    for (const child of children) await child[Symbol.asyncDispose]();
  };
  try {
    const addresses: Record<string, { address: string }> = {};
    for (let i = 0; i < count; i++) {
      const child = await startChild("../actions/host-process", { driver });
      children.push(child);
      addresses[`h${i}`] = z.object({ address: z.string() }).parse(child.ready);
    }
    const cpu = managerOf();
    const hosts = new HostsDriver(addresses);
    await new Promise<void>((resolve) => {
      let joined = 0;
      hosts.keep({
        joined: (node) => {
          cpu.join(node);
          if (++joined === count) resolve();
        },
        left: (node) => cpu.leave(node),
      });
    });
    const actions = actionsOf(hosts, cpu);
    return { actions, close: () => actions.close().finally(close) };
  } catch (error) {
    await close();
    throw error;
  }
}

const spec = { kind: "bench", cost: { cpu: 1 } };

/** Milliseconds for so many trajectories, each with a sandbox, to be opened, used once, and closed. */
async function lifetimes({ actions }: Machines): Promise<{ openMs: number; closeMs: number }> {
  const ids = Array.from({ length: numSandboxes }, (_, i) => `t${i}`);
  const each = async (act: (id: string) => Promise<unknown>): Promise<void> => {
    const left = [...ids];
    const work = async (): Promise<void> => {
      for (let id = left.pop(); id !== undefined; id = left.pop()) await act(id);
    };
    await Promise.all(Array.from({ length: atOnce }, work));
  };
  const openMs = await timed(() =>
    each(async (id) => {
      actions.openTrajectory(id);
      const { exitCode } = await actions.submit(id, spec, { command: ["true"] }).result;
      if (exitCode !== 0) throw new Error(`'true' ended with ${exitCode}`);
    }),
  );
  const closeMs = await timed(() => each((id) => actions.closeTrajectory(id)));
  return { openMs, closeMs };
}

export async function* benchHosts(): AsyncIterable<BenchRow> {
  const isolated = cgroupDriverLacks() === undefined;
  const name = isolated ? "cgroup" : "process";
  const make = (): SandboxDriver => (isolated ? new CgroupDriver() : new ProcessDriver());
  const memoryBytes = 2 ** 36;
  const ways = [here(make(), memoryBytes), await onHosts(name, 1)];
  try {
    const times = ways.map((): number[] => []);
    const act = ({ actions }: Machines) => actions.submit("one", spec, { command: ["sleep", String(actionMs / 1000)] });
    for (const way of ways) {
      way.actions.openTrajectory("one");
      await act(way).result;
    }
    for (let n = 0; n < numActions; n++)
      for (const [i, way] of ways.entries()) times[i]!.push(await timed(() => act(way).result));
    const [own = [], far = []] = times;
    yield row({
      name: `${name} on a host: what an action of ${actionMs} ms takes beyond the same in this process`,
      value: median(far.map((milliseconds, n) => milliseconds - own[n]!)),
      unit: "ms",
      baseline: actionMs,
      against: "the 100 ms of the action",
      ratioAtMost: 0.03,
      notMeasured,
    });
  } finally {
    for (const way of ways) await way.close();
  }
  const alone = here(make(), memoryBytes);
  const own = await lifetimes(alone).finally(() => alone.close());
  const many = await onHosts(name, numHosts);
  const far = await lifetimes(many).finally(() => many.close());
  for (const [what, value, baseline] of [
    ["open and use once", far.openMs, own.openMs],
    ["close", far.closeMs, own.closeMs],
  ] as const)
    yield row({
      name: `${name}: ${numSandboxes} sandboxes at once on ${numHosts} hosts, ${what}, each`,
      value: value / numSandboxes,
      unit: "ms",
      baseline: baseline / numSandboxes,
      against: "the same in one process",
      notMeasured,
    });
}
