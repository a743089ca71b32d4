/**
 * What memory on a device is for, and which of it leaves when others need the room.
 *
 * - MT1 what leaves makes room as far as all of it can, and nothing leaves that is not needed for that.
 * - MT2 of engines that say what each tag costs, the set leaves that takes the fewest seconds to take away and bring back.
 */
import { z } from "zod";

/** What a release gives back by itself, if its engine can. */
export const ReleasableTag = z.enum(["weights", "cache", "optimiser"]);
export type ReleasableTag = z.infer<typeof ReleasableTag>;
/** `residual`: what no release gives back, such as contexts and buffers. */
export type MemoryTag = ReleasableTag | "residual";

/** What an engine has on each of its devices under a tag while that is loaded, and how long it takes to release and to restore it. */
export const TagMemory = z.strictObject({
  tag: ReleasableTag,
  bytes: z.number().nonnegative(),
  releaseSeconds: z.number().nonnegative(),
  restoreSeconds: z.number().nonnegative(),
  /** names the memory where several workers have it in common, tag by tag: it is there once, and gone when the last of them has released it */
  sharedAs: z.string().min(1).max(100).optional(),
});
export type TagMemory = z.infer<typeof TagMemory>;

/** Memory that can leave its devices by itself. */
export type Movable = {
  readonly devices: readonly string[];
  /** on each of them */
  readonly bytes: number;
  /** to take it away and to bring it back */
  readonly seconds: number;
};

/** Up to so many are tried in every combination. */
const mostExact = 16;

/**
 * MT1: which of `movables` leave, so that what is missing on each device is there; `missing` becomes what is missing without them. They
 * are given least recently used first.
 *
 * `age`: in that order until there is room, then without those whose memory turned out not to be needed. `seconds` (MT2): the set that
 * takes the fewest seconds to take away and bring back, of equal ones the one with the fewest bytes, and then the least
 * recently used. That is exact where at most `mostExact` compete for the same devices; beyond, it takes first what costs least
 * for each byte that is missing.
 */
export function chooseLeaving<T extends Movable>(
  missing: Map<string, number>,
  movables: readonly T[],
  by: "age" | "seconds",
): Set<T> {
  if (by === "age") return takenInOrder(missing, movables);
  const chosen = new Set<T>();
  for (const rivals of rivalsOf(missing, movables)) {
    const ofThem =
      rivals.length <= mostExact ? cheapest(missing, rivals) : takenInOrder(missing, byCost(missing, rivals));
    for (const each of ofThem) chosen.add(each);
  }
  return chosen;
}

const isShort = (missing: ReadonlyMap<string, number>, device: string): boolean => (missing.get(device) ?? 0) > 0;

function shift(missing: Map<string, number>, { devices, bytes }: Movable, sign: 1 | -1): void {
  for (const device of devices) {
    const before = missing.get(device);
    if (before !== undefined) missing.set(device, before + sign * bytes);
  }
}

function takenInOrder<T extends Movable>(missing: Map<string, number>, movables: readonly T[]): Set<T> {
  const taken: T[] = [];
  for (const movable of movables) {
    if (!movable.devices.some((device) => isShort(missing, device))) continue;
    shift(missing, movable, -1);
    taken.push(movable);
  }
  const needed = new Set(taken);
  for (const movable of taken.reverse()) {
    shift(missing, movable, 1);
    if (movable.devices.some((device) => isShort(missing, device))) shift(missing, movable, -1);
    else needed.delete(movable);
  }
  return needed;
}

/** Those that something depends on, in groups that have no device in common on which anything is missing. */
function rivalsOf<T extends Movable>(missing: ReadonlyMap<string, number>, movables: readonly T[]): T[][] {
  const groups = new Map<string, Set<T>>();
  const order = new Map(movables.map((each, at) => [each, at]));
  for (const movable of movables) {
    const short = movable.devices.filter((device) => isShort(missing, device));
    if (short.length === 0 || movable.bytes === 0) continue;
    const merged = new Set([movable]);
    for (const device of short) for (const rival of groups.get(device) ?? []) merged.add(rival);
    for (const { devices } of merged)
      for (const device of devices) if (isShort(missing, device)) groups.set(device, merged);
  }
  return [...new Set(groups.values())].map((group) => [...group].sort((a, b) => order.get(a)! - order.get(b)!));
}

function byCost<T extends Movable>(missing: ReadonlyMap<string, number>, rivals: readonly T[]): T[] {
  const cost = ({ devices, bytes, seconds }: T): number =>
    seconds / devices.reduce((sum, device) => sum + Math.max(0, Math.min(bytes, missing.get(device) ?? 0)), 0);
  return rivals.toSorted((a, b) => cost(a) - cost(b));
}

/** Branch and bound; the first of equal ones wins, which has the least recently used. */
function cheapest<T extends Movable>(missing: Map<string, number>, rivals: readonly T[]): readonly T[] {
  const devices = [...new Set(rivals.flatMap((rival) => rival.devices))].filter((device) => isShort(missing, device));
  const isOn = rivals.map((rival) => devices.map((device) => rival.devices.includes(device)));
  /** from each of them on, by device */
  const rest = [devices.map(() => 0)];
  for (let at = rivals.length - 1; at >= 0; at--)
    rest.unshift(rest[0]!.map((bytes, d) => bytes + (isOn[at]![d] ? rivals[at]!.bytes : 0)));
  // Where all of them do not make enough room, all of them leave.
  const wanted = devices.map((device, d) => Math.min(missing.get(device)!, rest[0]![d]!));
  let best: { readonly taken: readonly T[]; readonly seconds: number; readonly bytes: number } | undefined;
  const search = (at: number, left: readonly number[], taken: readonly T[], seconds: number, bytes: number): void => {
    if (best !== undefined && (seconds > best.seconds || (seconds === best.seconds && bytes >= best.bytes))) return;
    if (left.every((each) => each <= 0)) best = { taken, seconds, bytes };
    else if (at < rivals.length && left.every((each, d) => each <= rest[at]![d]!)) {
      const rival = rivals[at]!;
      const without = left.map((each, d) => each - (isOn[at]![d] ? rival.bytes : 0));
      search(at + 1, without, [...taken, rival], seconds + rival.seconds, bytes + rival.bytes);
      search(at + 1, left, taken, seconds, bytes);
    }
  };
  search(0, wanted, [], 0, 0);
  const taken = best?.taken ?? rivals;
  for (const rival of taken) shift(missing, rival, -1);
  return taken;
}
