/**
 * A run over several nodes in virtual time: the shipped machines of membership, supervision, channels and the device
 * lock, in shells as thin as they can be, and faults. The cluster keeps its own account of what was put and trained and
 * of who computes on which device, and judges by it.
 */
import { MembershipState } from "../../packages/transport/src/control-plane/membership-state.ts";
import type { Fault } from "./faults.ts";
import { SimulatedAgent } from "./simulated-agent.ts";
import { SimulatedRunner } from "./simulated-runner.ts";
import { VirtualNetwork } from "./virtual-network.ts";

export const leaseMs = 2000;
export const beatMs = 400;
/** An agent that nobody hears ends its workers so long after. */
export const cutOffMs = 3000;
export const tickMs = 250;

export type StepRecord = { readonly step: number; readonly items: readonly string[] };

export type Scenario = {
  readonly numNodes: number;
  readonly numMakers: number;
  readonly numTrainers: number;
  readonly numSteps: number;
  readonly numPrompts: number;
  readonly capacity: number;
  /** makers and trainers of one node share a device */
  readonly sharesDevices: boolean;
  readonly overlapsSteps: boolean;
};

export function drawScenario(random: () => number): Scenario {
  const upTo = (low: number, high: number) => low + Math.floor(random() * (high - low + 1));
  return {
    numNodes: upTo(1, 3),
    numMakers: upTo(1, 2),
    numTrainers: upTo(1, 2),
    numSteps: upTo(1, 3),
    numPrompts: upTo(1, 6),
    capacity: upTo(1, 8),
    sharesDevices: random() < 0.5,
    overlapsSteps: random() < 0.5,
  };
}

export class BrokenInvariant extends Error {}

export class SimulatedCluster {
  readonly network: VirtualNetwork;
  readonly scenario: Scenario;
  readonly agents: SimulatedAgent[];
  /** survives every runner */
  readonly journal: StepRecord[] = [];
  /** incarnations of the runner that are or were announced */
  runnerIncarnation = 0;
  runner: SimulatedRunner | undefined;
  runnerHasFinished = false;
  readonly #computing = new Map<string, string>();

  constructor(seed: number) {
    this.network = new VirtualNetwork(seed);
    this.scenario = drawScenario(this.network.random);
    this.agents = Array.from({ length: this.scenario.numNodes }, (_, i) => new SimulatedAgent(this, `node${i}`));
    this.startRunner();
  }

  startRunner(): void {
    if (this.runner?.isAlive || this.runnerHasFinished) return;
    this.runner = new SimulatedRunner(this, ++this.runnerIncarnation);
    for (const agent of this.agents) agent.runnerAnnounced(this.runnerIncarnation);
  }

  inject({ kind, atMs, durationMs, target }: Fault): void {
    const { network, agents } = this;
    const agent = agents[target % agents.length] as SimulatedAgent;
    const workers = () => this.agents.flatMap((each) => each.processes).filter((each) => each.isAlive);
    const pick = () => {
      const all = workers();
      return all[target % Math.max(1, all.length)];
    };
    const cuts: [string, string][] = [];
    if (kind === "cut-both" || kind === "cut-from-node") cuts.push([agent.node, "runner"]);
    if (kind === "cut-both" || kind === "cut-to-node") cuts.push(["runner", agent.node]);
    network.after(atMs, () => {
      if (kind === "kill-worker") pick()?.die("killed");
      else if (kind === "pause-worker") pick()?.pause(durationMs);
      else if (kind === "pause-agent") agent.pause(durationMs);
      else if (kind === "pause-runner") this.runner?.pause(durationMs);
      else if (kind === "runner-clock-jumps" && this.runner) this.runner.clockOffsetMs += durationMs;
      else if (kind === "agent-clock-jumps") agent.clockOffsetMs += durationMs;
      else if (kind === "kill-agent") {
        agent.die();
        network.after(durationMs, () => agent.start());
      } else if (kind === "kill-runner") {
        this.runner?.die();
        network.after(durationMs, () => this.startRunner());
      } else if (kind === "bus-away") {
        network.isBusAway = true;
        network.after(durationMs, () => {
          network.isBusAway = false;
        });
      }
      for (const [from, to] of cuts) {
        network.cut(from, to);
        network.after(durationMs, () => network.mend(from, to));
      }
    });
  }

  /** L1, L3: whatever the lock believes, no two processes compute on one device. */
  computes(device: string, process: string): void {
    const other = this.#computing.get(device);
    if (other !== undefined && other !== process)
      throw new BrokenInvariant(`L1: '${process}' computes on '${device}' while '${other}' does`);
    this.#computing.set(device, process);
  }

  computesNoMore(device: string, process: string): void {
    if (this.#computing.get(device) === process) this.#computing.delete(device);
  }

  commit(record: StepRecord): void {
    const expected = this.promptsOf(record.step);
    if (record.step !== this.journal.length + 1)
      throw new BrokenInvariant(`J1: step ${record.step} is committed after ${this.journal.length}`);
    const trained = [...record.items].sort();
    if (JSON.stringify(trained) !== JSON.stringify(expected))
      throw new BrokenInvariant(`C1: step ${record.step} put ${expected.join(" ")} and trained ${trained.join(" ")}`);
    this.journal.push(record);
  }

  promptsOf(step: number): string[] {
    return Array.from({ length: this.scenario.numPrompts }, (_, i) => `${step}.${i}`).sort();
  }

  newMembership(nowMs: number): MembershipState {
    return new MembershipState(leaseMs, nowMs);
  }
}
