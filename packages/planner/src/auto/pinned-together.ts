/** Wishes that no cut of the flow keeps. Pure. */
import { type DeviceSpec, type PlacementWishes, type SolveOptions, TreadleError } from "@treadle/contracts";
import { componentsOf, formatDeviceNumbers } from "../placement-grammar.ts";
import { joinedGroups } from "../wishes.ts";

type Asked = Pick<SolveOptions, "deadlineMs" | "nowMs"> & {
  readonly wishes?: PlacementWishes | undefined;
  readonly pinned?: Readonly<Record<string, string>> | undefined;
};

export type Together<Found> = { readonly found: Found; readonly group: readonly string[] };

/** Of groups and their numbers of devices, about so many are tried. */
const mostTried = 16;

/**
 * Schedules cut the flow into what comes first and what follows (RLinf §3.4), so in none of them do two components share devices while
 * one between them has others: rollout and actor beside an inference of its own, say. Pinned to devices they do.
 * Numbers of devices are tried for groups of `together`, or, where only `apart` is wished, for every two that may share;
 * `plan` does the rest, further groups included. Undefined where that makes no plan either, in the time.
 */
export function planPinnedTogether<
  Found extends { readonly predicted: { readonly stepSeconds: number } },
  A extends Asked,
>(
  asked: A,
  components: readonly string[],
  devicesOf: (component: string) => readonly DeviceSpec[],
  plan: (pinned: A) => Found,
): Together<Found> | undefined {
  const { pinned = {}, wishes = {}, deadlineMs = Number.POSITIVE_INFINITY, nowMs = () => 0 } = asked;
  const endMs = nowMs() + deadlineMs;
  const names = Object.keys(pinned).flatMap(componentsOf);
  const groups = groupsOf(wishes, components).filter((group) => !group.some((name) => names.includes(name)));
  const tries = groups.flatMap((group) => {
    const devices = devicesOf(group[0]!);
    return sizesBelow(devices.length, Math.ceil(mostTried / groups.length)).map((size) => ({
      group,
      devices: devices.slice(0, size),
    }));
  });
  let best: Together<Found> | undefined;
  for (const [at, { group, devices }] of tries.entries()) {
    const leftMs = endMs - nowMs();
    if (leftMs <= 0) break;
    const numbers = formatDeviceNumbers(devices.map(({ index }) => index));
    const tried = {
      ...asked,
      pinned: { ...pinned, [group.join(",")]: numbers },
      wishes: { ...wishes, together: [...(wishes.together ?? []), group] },
      ...(asked.deadlineMs === undefined ? {} : { deadlineMs: leftMs / (tries.length - at) }),
    };
    try {
      const found = plan(tried);
      if (!(best && best.found.predicted.stepSeconds <= found.predicted.stepSeconds)) best = { found, group };
    } catch (error) {
      if (!(error instanceof TreadleError) || !error.code.startsWith("placement.")) throw error;
    }
  }
  return best;
}

function groupsOf({ together = [], apart = [] }: PlacementWishes, components: readonly string[]): string[][] {
  if (together.length > 0) return joinedGroups(together).map((names) => [...names].sort());
  if (apart.length === 0) return [];
  const areApart = (a: string, b: string): boolean => apart.some((names) => names.includes(a) && names.includes(b));
  return components.flatMap((a, i) => components.slice(i + 1).flatMap((b) => (areApart(a, b) ? [] : [[a, b]])));
}

/** All where they are few, else evenly spread. */
function sizesBelow(numDevices: number, mostSizes: number): number[] {
  const most = numDevices - 1;
  const number = Math.min(most, mostSizes);
  return [...new Set(Array.from({ length: number }, (_, i) => Math.round(((i + 1) * most) / number)))];
}
