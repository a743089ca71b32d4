/** Action-level scheduling against what is done without it, over a grid of workloads. */
import { type DecideOptions, defaultDecideOptions } from "@treadle/actions/state-machines";
import { createRandom } from "@treadle/learning";
import { type BestDegree, bestDegree } from "./best-degree.ts";
import type { StepFigures } from "./completion-times.ts";
import { podStep } from "./pod-step.ts";
import { type ActionScenario, type CodingWorkload, codingWorkloads } from "./scenario.ts";
import { scheduledStep } from "./scheduled-step.ts";
import {
  dedicatedServices,
  drawRequests,
  pooledServices,
  type ServiceFigures,
  type ServiceWorkload,
  serviceDegrees,
  serviceWorkloads,
} from "./service-step.ts";
import { compareSuite, drawSuites, type SuiteComparison } from "./suite-step.ts";
import { drawTrajectories } from "./trajectories.ts";

/** One workload at one size. `pods` has an entry for every number of workers of a reward, `fixed` for every degree. */
export type CodingComparison = {
  readonly batch: number;
  readonly cores: number;
  readonly workload: CodingWorkload;
  readonly unitAware: StepFigures;
  readonly paper: StepFigures;
  readonly fcfsMin: StepFigures;
  readonly fixed: readonly { readonly dop: number; readonly figures: StepFigures }[];
  readonly pods: readonly { readonly rewardWorkers: number; readonly figures: StepFigures }[];
};

export type ServiceComparison = {
  readonly workload: ServiceWorkload;
  readonly dedicated: ServiceFigures;
  /** on as many GPUs */
  readonly pooled: ServiceFigures;
  /** pooled, every request on as many: the best in hindsight */
  readonly fixed: BestDegree;
  /** the fewest GPUs on which pooling is not slower than all of them dedicated; null when none suffices */
  readonly fewestGpus: number | null;
};

/** Yields each comparison when it is made: a scenario takes minutes. The same seed gives the same figures. */
export function* compareCoding(scenario: ActionScenario): Generator<CodingComparison> {
  const { points, nodes, fixedDegrees, pods } = scenario;
  for (const workload of codingWorkloads(scenario)) {
    for (const { batch, cores } of points) {
      const simulated = Math.min(nodes, Math.ceil((scenario.simulatedTrajectories * nodes) / batch));
      const count = Math.max(1, Math.round((batch * simulated) / nodes));
      const machines = { nodes: simulated, coresPerNode: Math.max(1, Math.floor(cores / nodes)) };
      // The first trajectories are the same whatever the batch.
      const step = drawTrajectories(workload, count, createRandom(scenario.seed).split("trajectories"));
      const under = (options: Partial<DecideOptions>): StepFigures =>
        scheduledStep(step, workload, machines, { ...defaultDecideOptions, ...options });
      yield {
        batch,
        cores,
        workload,
        unitAware: under({ policy: "unit-aware" }),
        paper: under({ policy: "paper" }),
        fcfsMin: under({ policy: "fcfs-min" }),
        fixed: fixedDegrees.map((dop) => ({ dop, figures: under({ policy: "fixed-dop", dop }) })),
        pods: pods.rewardWorkers.map((rewardWorkers) => ({
          rewardWorkers,
          figures: podStep(step, workload, machines, {
            ...pods,
            rewardWorkers,
            podsPerSecond: (pods.podsPerSecond * simulated) / nodes,
          }),
        })),
      };
    }
  }
}

export function* compareServices({ services, seed }: ActionScenario): Generator<ServiceComparison> {
  if (services === undefined) return;
  const pooledOn = new Map<string, ServiceFigures>();
  for (const workload of serviceWorkloads(services)) {
    const requests = drawRequests(workload, createRandom(seed).split("requests"));
    const dedicated = dedicatedServices(requests, workload);
    const { gpusPerModel, serverSlots, ...rest } = workload;
    const { gpusPerNode, models } = rest;
    const on = (nodes: number, options: Partial<DecideOptions> = {}): ServiceFigures => {
      const key = JSON.stringify([nodes, options, rest]);
      const figures =
        pooledOn.get(key) ??
        pooledServices(requests, workload, nodes * gpusPerNode, { ...defaultDecideOptions, ...options });
      pooledOn.set(key, figures);
      return figures;
    };
    const all = Math.floor((models * gpusPerModel) / gpusPerNode);
    const pooled = on(all);
    // By bisection: fewer GPUs are not faster, but for chance.
    let [few, enough] = [0, all];
    while (pooled.act <= dedicated.act && enough - few > 1) {
      const middle = (few + enough) >> 1;
      if (on(middle).act <= dedicated.act) enough = middle;
      else few = middle;
    }
    const fixed = bestDegree(serviceDegrees, gpusPerNode, (dop) => on(all, { policy: "fixed-dop", dop }).act);
    const fewestGpus = pooled.act <= dedicated.act ? enough * gpusPerNode : null;
    yield { workload, dedicated, pooled, fixed, fewestGpus };
  }
}

export function* compareSuites({ suites, seed }: ActionScenario): Generator<SuiteComparison> {
  const random = createRandom(seed).split("suites");
  for (let i = 0; i < suites; i++) yield compareSuite(drawSuites(random.split(i)));
}

/** The least of a figure over the fixed degrees, chosen in hindsight. */
export function bestFixed(
  { fixed }: CodingComparison,
  figure: keyof StepFigures,
): { readonly dop: number; readonly value: number } {
  return fixed
    .map(({ dop, figures }) => ({ dop, value: figures[figure] }))
    .reduce((best, one) => (one.value < best.value ? one : best));
}
