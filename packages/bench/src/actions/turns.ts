import { setImmediate as nextTurn } from "node:timers/promises";
import { ActionPool, CpuManager } from "@treadle/actions";
import { type Clock, median } from "@treadle/contracts";
import { type BenchRow, row } from "../row.ts";
import { randomNumbers } from "./workload.ts";

const numKinds = 8;
const numTenants = 4;
const rounds = 100;

/**
 * Processor time of the end of an action where so many wait: what it held is given back, what it took is learned, and decisions are
 * made until nobody else can start. Half are tool calls of one core, half scale over 1 to 1280; each is of a trajectory.
 */
export async function benchTurns(): Promise<BenchRow[]> {
  const rows: BenchRow[] = [];
  for (const numWaiting of [1000, 4000]) {
    const value = await medianTurnMs(numWaiting);
    const name = `the end of an action, ${numWaiting} waiting of ${numKinds} kinds and ${numTenants} tenants, 1280 cores`;
    rows.push(row({ name, value, unit: "ms", notMeasured: "what the action runs" }));
  }
  return rows;
}

async function medianTurnMs(numWaiting: number): Promise<number> {
  let nowMs = 0;
  // Nothing here waits for time.
  const clock: Clock = { now: () => nowMs, after: () => () => {} };
  const numa = Array.from({ length: 40 }, (_, n) => Array.from({ length: 32 }, (_, core) => 32 * n + core));
  const cpu = new CpuManager({ nodes: [{ id: "n0", numa, memoryBytes: 2 ** 50 }] });
  const pool = new ActionPool({ managers: [cpu], clock });
  const running: (() => void)[] = [];
  const draw = randomNumbers(1);
  let made = 0;
  const submit = (): void => {
    const n = made++;
    const kind = n % numKinds;
    const own = { tenant: `t${n % numTenants}`, trajectory: `${n}` };
    const spec =
      draw() < 0.5
        ? { ...own, kind: `tool-${kind}`, cost: { cpu: 1 } }
        : {
            ...own,
            kind: `reward-${kind}`,
            cost: { cpu: { min: 1, max: 1280 } },
            key: "cpu",
            elasticity: { type: "amdahl", serialShare: 0.01 * (kind + 1) },
            duration: 60 + kind,
          };
    pool.submit(spec, () => new Promise<void>((resolve) => void running.push(resolve)));
  };
  const times: number[] = [];
  for (let round = 0; round < 2 * rounds; round++) {
    while (pool.numWaiting < numWaiting) submit();
    await nextTurn();
    nowMs += 20 + 80 * draw();
    const [end] = running.splice(Math.floor(draw() * running.length), 1);
    const before = process.cpuUsage();
    end!();
    await nextTurn();
    const { user, system } = process.cpuUsage(before);
    if (round >= rounds) times.push((user + system) / 1000);
  }
  for (const end of running) end();
  void pool.close();
  return median(times);
}
