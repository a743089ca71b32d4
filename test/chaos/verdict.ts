/**
 * Whether a cluster that was struck recovered as soon as is wanted. Pure.
 *
 * Strikes come every two seconds or so, sooner than processes start, so some pauses are rows of them, and the longest says how
 * long a row was drawn. It is told; what is judged is the longest time from the last strike to the next step.
 *
 * The limits are those of a machine that does nothing else: on one that others keep busy, times say how busy it is, so they are
 * told as ratios and not judged. Neither is a median of a few.
 */
import type { ChaosReport } from "./chaos.ts";

export const wanted = { medianRecoverySeconds: 3, longestRecoverySeconds: 15 } as const;
/** Processes of others that want to run, for each processor, before the cluster starts. */
const quietLoad = 0.5;
const fewestRecoveries = 10;

export type Measured = {
  readonly recovery: Pick<ChaosReport["recovery"], "num" | "median">;
  readonly longestRecoverySeconds: number;
  readonly longestPause: ChaosReport["longestPause"];
  /** of the last minute before it began */
  readonly loadBefore: number;
  readonly processors: number;
};

export type Verdict = { readonly type: "kept" | "exceeded" | "not judged"; readonly text: string };

export function verdictOn({
  recovery,
  longestRecoverySeconds,
  longestPause,
  loadBefore,
  processors,
}: Measured): Verdict {
  const figures = [
    figure("median recovery of a worker", recovery.median, wanted.medianRecoverySeconds),
    figure("longest time from the last strike to a step", longestRecoverySeconds, wanted.longestRecoverySeconds),
  ];
  const row = `longest time without a step ${longestPause.seconds.toFixed(1)} s, in which it was struck '${longestPause.strikes}' times`;
  const text = [...figures.map((each) => each.text), row].join("; ");
  const load = loadBefore / processors;
  if (load > quietLoad) {
    const why = `the machine was busy before it began: a load of ${loadBefore.toFixed(1)} on ${processors} processors`;
    return { type: "not judged", text: `${text}; not judged, as ${why}` };
  }
  if (recovery.num < fewestRecoveries)
    return { type: "not judged", text: `${text}; not judged, as only ${recovery.num} workers recovered` };
  return figures.some(({ isKept }) => !isKept)
    ? { type: "exceeded", text: `too slow: ${text}` }
    : { type: "kept", text: `as soon as wanted: ${text}` };
}

function figure(what: string, seconds: number, limit: number): { readonly text: string; readonly isKept: boolean } {
  const ratio = (seconds / limit).toFixed(2);
  return { text: `${what} ${seconds.toFixed(1)} s, ${ratio} times the ${limit} s wanted`, isKept: seconds < limit };
}
