/** One step of a coding task under action-level scheduling (ARL-Tangram §4, §5.2), on virtual time. */
import { ActionHistory, ActionSpec, CpuManager, type DecideOptions, formulate } from "@treadle/actions/state-machines";
import { EventQueue } from "../event-queue.ts";
import { CompletionTimes, type StepFigures } from "./completion-times.ts";
import { scalingAction } from "./scaling-action.ts";
import type { CodingWorkload } from "./scenario.ts";
import type { CodingTrajectory } from "./trajectories.ts";
import { VirtualPool } from "./virtual-pool.ts";

/** Each node has `coresPerNode` cores in NUMA nodes of 32. Memory never limits here. */
export type VirtualMachines = { readonly nodes: number; readonly coresPerNode: number };

const numaCores = 32;

export function scheduledStep(
  trajectories: readonly CodingTrajectory[],
  workload: CodingWorkload,
  { nodes, coresPerNode }: VirtualMachines,
  options: DecideOptions,
): StepFigures {
  const queue = new EventQueue();
  const numa = Array.from({ length: Math.ceil(coresPerNode / numaCores) }, (_, n) =>
    Array.from({ length: Math.min(numaCores, coresPerNode - n * numaCores) }, (_, core) => n * numaCores + core),
  );
  const cluster = Array.from({ length: nodes }, (_, n) => ({ id: `${n}`, numa, memoryBytes: Number.MAX_SAFE_INTEGER }));
  const pool = new VirtualPool(queue, new CpuManager({ nodes: cluster }), options);
  const history = new ActionHistory();
  const times = new CompletionTimes();
  const tool = ActionSpec.parse({ kind: "tool", cost: { cpu: 1 } });
  const { overheadSeconds, maxCores } = workload;

  const start = (trajectory: CodingTrajectory, name: string): void => {
    const { generations, tools, reward } = trajectory;
    const generate = (turn: number): void =>
      queue.after(generations[turn]! * 1000, () => (turn < tools.length ? call(turn) : score()));
    const call = (turn: number): void => {
      const id = `${name}/${turn}`;
      const seconds = tools[turn]! + overheadSeconds;
      pool.submit({
        // Tools are known by their history alone.
        queued: () => formulate(id, tool, history),
        request: { actionId: id, trajectory: name, minimum: 1 },
        secondsOn: () => seconds,
        ended: (completionSeconds, held) => {
          history.observe(tool, 1, seconds);
          times.add("tool", completionSeconds);
          times.addBusy(held);
          generate(turn + 1);
        },
      });
    };
    const score = (): void => {
      const id = `${name}/reward`;
      const machine = { maxCores, cores: coresPerNode, overheadSeconds };
      pool.submit({
        ...scalingAction({ kind: "reward", id, trajectory: name, ...machine, ...reward }, history),
        ended: (completionSeconds, held) => {
          times.add("reward", completionSeconds);
          times.addBusy(held);
          pool.endTrajectory(name);
        },
      });
    };
    generate(0);
  };
  for (const [i, trajectory] of trajectories.entries()) start(trajectory, `${i}`);
  while (queue.runNext()) {}
  return times.figures(queue.nowMs / 1000, nodes * coresPerNode);
}
