/** What goes wrong, when, where, and for how long; drawn from a seed, and made smaller when something breaks. */
import { randomOf } from "./virtual-network.ts";

export const faultKinds = [
  "kill-worker",
  "pause-worker",
  "kill-agent",
  "pause-agent",
  "kill-runner",
  "pause-runner",
  "cut-both",
  "cut-from-node",
  "cut-to-node",
  "bus-away",
  "runner-clock-jumps",
  "agent-clock-jumps",
] as const;

export type Fault = {
  readonly kind: (typeof faultKinds)[number];
  readonly atMs: number;
  /** pauses and cuts end, agents and runners start again, after this */
  readonly durationMs: number;
  /** which worker or node, counted round */
  readonly target: number;
};

/** No fault begins later; all have ended `longestMs` after it. */
export const faultsUntilMs = 6000;
export const longestMs = 9000;

export function drawFaults(seed: number): Fault[] {
  const random = randomOf(seed * 7 + 3);
  return Array.from({ length: Math.floor(random() * 6) }, () => ({
    kind: faultKinds[Math.floor(random() * faultKinds.length)] as Fault["kind"],
    atMs: Math.floor(random() ** 2 * faultsUntilMs),
    durationMs: Math.floor(50 + random() ** 2 * (longestMs - 50)),
    target: Math.floor(random() * 8),
  })).sort((a, b) => a.atMs - b.atMs);
}

/** The fewest and shortest of these faults under which `fails` still holds. */
export function shrinkFaults(faults: readonly Fault[], fails: (faults: readonly Fault[]) => boolean): readonly Fault[] {
  let smallest = faults;
  for (let i = 0; i < smallest.length; ) {
    const without = smallest.filter((_, at) => at !== i);
    if (fails(without)) smallest = without;
    else i++;
  }
  for (let i = 0; i < smallest.length; i++) {
    for (;;) {
      const shorter = smallest.map((fault, at) =>
        at === i ? { ...fault, durationMs: Math.floor(fault.durationMs / 2) } : fault,
      );
      if ((smallest[i] as Fault).durationMs < 50 || !fails(shorter)) break;
      smallest = shorter;
    }
  }
  return smallest;
}

export const describeFault = ({ kind, atMs, durationMs, target }: Fault): string =>
  `${kind} ${target} at ${atMs} ms for ${durationMs} ms`;
