/** Wishes that no cut of the flow keeps. Pure. */
import {
  type DeviceSpec,
  type FlowGraph,
  type PlacementWishes,
  type SolveOptions,
  TreadleError,
} from "@treadle/contracts";
import { componentsOf, formatDeviceNumbers } from "../placement-grammar.ts";
import { joinedGroups } from "../wishes.ts";

type Asked = Pick<SolveOptions, "deadlineMs" | "nowMs"> & {
  readonly wishes?: PlacementWishes | undefined;
  readonly pinned?: Readonly<Record<string, string>> | undefined;
};

export type Together<Found> = { readonly found: Found; readonly group: readonly string[] };

/** Of groups and their numbers of devices, about so many are tried; fewer where there is a plan without. */
const mostTried = { only: 16, more: 6 };

type Planning<Found, A> = {
  readonly plan: (pinned: A) => Found;
  readonly secondsOf: (found: Found) => number;
  /** whether there is no plan without */
  readonly isOnly: boolean;
};

/** Whether what some that are to be together do leads to others and back to them, so that no cut gives those devices beside them. */
export function isParted(wishes: PlacementWishes | undefined, { edges }: Pick<FlowGraph, "edges">): boolean {
  const from = (names: ReadonlySet<string>, isForward: boolean): ReadonlySet<string> => {
    const reached = new Set<string>();
    const next = [...names];
    for (const name of next) {
      for (const edge of edges) {
        const [tail, head] = isForward ? [edge.from, edge.to] : [edge.to, edge.from];
        if (tail !== name || reached.has(head)) continue;
        reached.add(head);
        next.push(head);
      }
    }
    return reached;
  };
  return joinedGroups(wishes?.together ?? []).some((group) => {
    const before = from(group, false);
    return [...from(group, true)].some((name) => !group.has(name) && before.has(name));
  });
}

/**
 * Schedules cut the flow into what comes first and what follows (RLinf §3.4), so in none of them do two components share devices while
 * one between them has others: rollout and actor beside an inference of its own, say. Pinned to devices they do.
 * Numbers of devices are tried for groups of `together`, or, where only `apart` is wished, for every two that may share;
 * `plan` does the rest, further groups included. Undefined where that makes no plan either, in the time.
 */
export function planPinnedTogether<Found, A extends Asked>(
  asked: A,
  components: readonly string[],
  devicesOf: (component: string) => readonly DeviceSpec[],
  { plan, secondsOf, isOnly }: Planning<Found, A>,
): Together<Found> | undefined {
  const { pinned = {}, wishes = {}, deadlineMs = Number.POSITIVE_INFINITY, nowMs = () => 0 } = asked;
  const endMs = nowMs() + deadlineMs;
  const names = Object.keys(pinned).flatMap(componentsOf);
  const groups = groupsOf(wishes, components).filter((group) => !group.some((name) => names.includes(name)));
  const tries = groups.flatMap((group) => {
    const devices = devicesOf(group[0]!);
    return sizesBelow(devices.length, Math.ceil(mostTried[isOnly ? "only" : "more"] / groups.length)).map((size) => ({
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
      if (!(best && secondsOf(best.found) <= secondsOf(found))) best = { found, group };
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
