/** Who else is on the nodes of a run. CPU slots are each run's own, so two runs on a node overlap on its cores. Pure. */
import type { NodeInfo } from "@treadle/contracts";

type Occupancy = Pick<NodeInfo, "workers" | "exclusiveTo">;
export type OwnRun = {
  /** absent: a run that is none yet, such as the measuring of a plan */
  readonly runId: string | undefined;
  /** `cluster.exclusive` */
  readonly exclusive: boolean;
};

/** Other runs with workers on a node, and how many. */
export function othersOn({ workers }: Occupancy, runId: string | undefined): [run: string, numWorkers: number][] {
  return Object.entries(workers).flatMap(([run, list]): [string, number][] =>
    run === runId || list.length === 0 ? [] : [[run, list.length]],
  );
}

/** Why a run must not use a node, if so: it is another run's alone, or is to be this one's alone and is not. */
export function whyTaken(node: Occupancy, { runId, exclusive }: OwnRun): string | undefined {
  if (node.exclusiveTo !== undefined && node.exclusiveTo !== runId) {
    return `run '${node.exclusiveTo}' has it for itself (cluster.exclusive)`;
  }
  const [other] = exclusive ? othersOn(node, runId) : [];
  return other && `run '${other[0]}' has ${other[1]} workers there, and cluster.exclusive wants nodes without others`;
}

/** Says once of each run that begins to share a node with this one that it does. */
export class Neighbours {
  #known = new Set<string>();

  /** `nodes`: those where this run has workers. What is to be said now. */
  look(nodes: readonly { readonly name: string; readonly info: Occupancy }[], runId: string): string[] {
    const found = nodes.flatMap(({ name, info }) => othersOn(info, runId).map(([run, num]) => ({ name, run, num })));
    const before = this.#known;
    this.#known = new Set(found.map(({ name, run }) => `${name} ${run}`));
    return found
      .filter(({ name, run }) => !before.has(`${name} ${run}`))
      .map(
        ({ name, run, num }) =>
          `node '${name}' also runs ${num} workers of run '${run}': both take its cores for their own, so both are slower; give them other nodes, or set cluster.exclusive`,
      );
  }
}
