/**
 * The same step with a pod a trajectory, as Kubernetes gives it (ARL-Tangram §6.1): created when the trajectory begins,
 * kept until its reward is known, requesting a little and limited to a few cores. Running pods of a node share its cores
 * evenly up to their limits; what is requested and the number of pods of a node limit how many there are; the control
 * plane creates them one after another. It never times out here, as the paper's does when it is overloaded.
 */
import { EventQueue } from "../event-queue.ts";
import { CompletionTimes, type StepFigures } from "./completion-times.ts";
import type { CodingWorkload, PodOptions } from "./scenario.ts";
import type { VirtualMachines } from "./scheduled-step.ts";
import type { CodingTrajectory } from "./trajectories.ts";

type Job = {
  /** seconds left on one core */
  left: number;
  readonly serialShare: number;
  /** cores it can use */
  readonly most: number;
  readonly ended: () => void;
};

export function podStep(
  trajectories: readonly CodingTrajectory[],
  workload: CodingWorkload,
  machines: VirtualMachines,
  pods: PodOptions,
): StepFigures {
  const { nodes: numNodes, coresPerNode } = machines;
  const queue = new EventQueue();
  const times = new CompletionTimes();
  const nodes = Array.from({ length: numNodes }, () => new SharedNode(queue, coresPerNode, times));
  const room = Math.min(pods.podsPerNode, Math.floor(coresPerNode / pods.requestCores + 1e-9));
  const running = nodes.map(() => 0);
  const asking: ((node: number) => void)[] = [];
  let nextCreationMs = 0;

  const admit = (): void => {
    while (asking.length > 0) {
      const node = running.indexOf(Math.min(...running));
      if (running[node]! >= room) return;
      running[node]!++;
      const created = asking.shift()!;
      nextCreationMs = Math.max(nextCreationMs, queue.nowMs) + 1000 / pods.podsPerSecond;
      queue.at(nextCreationMs + pods.startSeconds * 1000, () => created(node));
    }
  };

  for (const { generations, tools, reward } of trajectories) {
    let node: number | undefined;
    let whenCreated: ((node: number) => void) | undefined;
    asking.push((given) => {
      node = given;
      whenCreated?.(given);
    });
    const run = (
      kind: "tool" | "reward",
      seconds: number,
      serialShare: number,
      most: number,
      then: () => void,
    ): void => {
      const submittedMs = queue.nowMs;
      const job = {
        left: seconds + workload.overheadSeconds,
        serialShare,
        most,
        ended: () => {
          times.add(kind, (queue.nowMs - submittedMs) / 1000);
          then();
        },
      };
      if (node !== undefined) nodes[node]!.start(job);
      else whenCreated = (given) => nodes[given]!.start(job);
    };
    const generate = (turn: number): void =>
      queue.after(generations[turn]! * 1000, () => {
        if (turn < tools.length) return run("tool", tools[turn]!, 1, 1, () => generate(turn + 1));
        const most = Math.min(pods.limitCores, pods.rewardWorkers);
        run("reward", reward.seconds, reward.serialShare, most, () => {
          running[node!]!--;
          admit();
        });
      });
    generate(0);
  }
  admit();
  while (queue.runNext()) {}
  return times.figures(queue.nowMs / 1000, numNodes * coresPerNode);
}

/** Cores that running jobs share evenly, each up to what it can use. */
class SharedNode {
  readonly #queue: EventQueue;
  readonly #cores: number;
  readonly #times: CompletionTimes;
  readonly #jobs = new Set<Job>();
  #atMs = 0;
  #level = 0;
  #version = 0;

  constructor(queue: EventQueue, cores: number, times: CompletionTimes) {
    this.#queue = queue;
    this.#cores = cores;
    this.#times = times;
  }

  start(job: Job): void {
    this.#advance();
    this.#jobs.add(job);
    this.#share();
  }

  #advance(): void {
    const seconds = (this.#queue.nowMs - this.#atMs) / 1000;
    this.#atMs = this.#queue.nowMs;
    if (seconds === 0) return;
    for (const job of this.#jobs) {
      job.left -= seconds * this.#speed(job);
      this.#times.addBusy(seconds * Math.min(job.most, this.#level));
    }
  }

  /** On c cores a job goes on as on c workers; below one, in proportion. */
  #speed({ most, serialShare }: Job): number {
    const cores = Math.min(most, this.#level);
    return cores <= 1 ? cores : 1 / (serialShare + (1 - serialShare) / cores);
  }

  /** The level at which everybody's share, cut at what it can use, adds up to the cores. */
  #share(): void {
    let left = this.#cores;
    let jobs = this.#jobs.size;
    this.#level = Number.POSITIVE_INFINITY;
    for (const most of [...this.#jobs].map((job) => job.most).sort((a, b) => a - b)) {
      if (most * jobs >= left) {
        this.#level = left / jobs;
        break;
      }
      left -= most;
      jobs--;
    }
    const version = ++this.#version;
    let nextSeconds = Number.POSITIVE_INFINITY;
    for (const job of this.#jobs) nextSeconds = Math.min(nextSeconds, Math.max(0, job.left) / this.#speed(job));
    if (!Number.isFinite(nextSeconds)) return;
    this.#queue.after(nextSeconds * 1000, () => {
      if (version !== this.#version) return;
      this.#advance();
      // Rounding leaves nanoseconds.
      const ended = [...this.#jobs].filter((job) => job.left <= 1e-9);
      for (const job of ended) this.#jobs.delete(job);
      this.#share();
      for (const job of ended) job.ended();
    });
  }
}
