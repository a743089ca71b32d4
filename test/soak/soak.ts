/** One seed: a scenario, its faults, and what became of them. */
import { describeFault, drawFaults, type Fault, faultsUntilMs, longestMs, shrinkFaults } from "./faults.ts";
import { BrokenInvariant } from "./judge.ts";
import { SimulatedCluster } from "./simulated-cluster.ts";

/** Far more virtual time than a run takes once nothing is wrong any more. */
const deadlineMs = faultsUntilMs + longestMs + 90_000;
const maxEvents = 400_000;

export type Failure = { readonly seed: number; readonly faults: readonly Fault[]; readonly message: string };

/** What went wrong; undefined when nothing did. */
export function failureOf(
  seed: number,
  faults: readonly Fault[] = drawFaults(seed),
  recorder?: SimulatedCluster["recorder"],
): string | undefined {
  const cluster = new SimulatedCluster(seed, {}, {}, recorder);
  const { network } = cluster;
  for (const fault of faults) cluster.inject(fault);
  network.after(faultsUntilMs + longestMs, () => {
    network.loss = 0;
    network.doubling = 0;
  });
  try {
    for (let events = 0; !isOver(cluster); events++) {
      if (!network.step() || network.nowMs > deadlineMs || events > maxEvents) {
        throw new BrokenInvariant(
          `S3: no end in sight at ${Math.round(network.nowMs)} ms\n${cluster.runner?.report()}`,
        );
      }
    }
    return undefined;
  } catch (error) {
    return error instanceof BrokenInvariant ? error.message : String((error as Error).stack);
  }
}

/** S4: every step is in the journal, and no process is left anywhere. */
const isOver = ({ runnerHasFinished, agents }: SimulatedCluster): boolean =>
  runnerHasFinished && agents.every(({ processes }) => processes.every(({ isAlive }) => !isAlive));

export function explain(seed: number): Failure | undefined {
  const message = failureOf(seed);
  if (message === undefined) return undefined;
  const faults = shrinkFaults(drawFaults(seed), (fewer) => failureOf(seed, fewer) !== undefined);
  return { seed, faults, message: failureOf(seed, faults) ?? message };
}

export const describeFailure = ({ seed, faults, message }: Failure): string =>
  [`seed ${seed}: ${message}`, ...faults.map((fault) => `  ${describeFault(fault)}`)].join("\n");
