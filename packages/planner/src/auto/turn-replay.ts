/**
 * What a step of turns takes where memory is short, by doing what the device lock does (L4) in the order in which the
 * workflow calls: least recently used residents go first, and none needlessly. The search costs swaps by pairs of parts,
 * and would choose, of all orders, the one that this flatters most. Pure.
 */
import type { Plan } from "@treadle/contracts";
import type { Cost } from "../plan/evaluate.ts";

/** One component's turn; in the order of calls. */
export type Turn = {
  readonly ranks: Plan["components"][string]["ranks"];
  /** on each device of a rank */
  readonly bytes: number;
  readonly onloadSeconds: number;
  readonly offloadSeconds: number;
};

/** Seconds of work of a schedule of nothing but turns of whole batches; undefined of any other. */
export function turnSeconds({ schedule, parts, step }: Cost, batch: number): number | undefined {
  if (schedule.items !== batch) return undefined;
  if (schedule.op === "node") return step;
  if (schedule.op !== "temporal") return undefined;
  const seconds = parts.map((part) => turnSeconds(part, batch));
  return seconds.every((each) => each !== undefined) ? seconds.reduce((sum, each) => sum + each, 0) : undefined;
}

type Resident = { readonly devices: readonly string[]; readonly turn: Turn; lastUse: number };

/** Seconds of all swaps of a step, when it is not the first one. */
export function replaySwaps(turns: readonly Turn[], memory: ReadonlyMap<string, number>): number {
  const residents = new Map<string, Resident>();
  let clock = 0;
  let seconds = 0;
  // What the first step finds loaded is not what the others do.
  for (let step = 0; step < 2; step++) {
    seconds = 0;
    for (const [at, turn] of turns.entries()) {
      let slowest = 0;
      for (const [rank, { devices }] of turn.ranks.entries()) {
        const key = `${at} ${rank}`;
        const isLoaded = residents.has(key);
        const gone = isLoaded ? [] : makeRoom(residents, devices, turn.bytes, memory);
        const offload = Math.max(0, ...gone.map((each) => each.turn.offloadSeconds));
        slowest = Math.max(slowest, offload + (isLoaded ? 0 : turn.onloadSeconds));
        residents.set(key, { devices, turn, lastUse: ++clock });
      }
      seconds += slowest;
    }
  }
  return seconds;
}

function makeRoom(
  residents: Map<string, Resident>,
  devices: readonly string[],
  bytes: number,
  memory: ReadonlyMap<string, number>,
): Resident[] {
  const staying = new Set(residents.keys());
  const excess = (device: string): number =>
    [...staying].reduce((sum, key) => {
      const { devices: own, turn } = residents.get(key)!;
      return own.includes(device) ? sum + turn.bytes : sum;
    }, bytes) - (memory.get(device) ?? Number.POSITIVE_INFINITY);
  const isShort = (): boolean => devices.some((device) => excess(device) > 0);
  const byUse = [...residents].sort(([, a], [, b]) => a.lastUse - b.lastUse);
  const chosen: string[] = [];
  for (const [key, { devices: own }] of byUse) {
    if (!own.some((device) => devices.includes(device) && excess(device) > 0)) continue;
    staying.delete(key);
    chosen.push(key);
  }
  // Those whose memory turned out not to be needed stay.
  const gone = chosen.reverse().filter((key) => {
    staying.add(key);
    if (!isShort()) return false;
    staying.delete(key);
    return true;
  });
  return gone.map((key) => {
    const resident = residents.get(key)!;
    residents.delete(key);
    return resident;
  });
}
