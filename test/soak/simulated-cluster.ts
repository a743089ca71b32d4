/**
 * A run over several nodes in virtual time: the shipped machines of membership, supervision, channels and the device
 * lock, in shells as thin as they can be, and faults. The cluster keeps its own account of what was put and trained and
 * of who computes on which device, and judges by it.
 */
import type { RecordedTurn, RecordingHeader } from "@treadle/contracts";
import type { LeaseEffect, PolicyName, RunnerState, SupervisionLimits } from "@treadle/core";
import { MembershipState } from "../../packages/transport/src/control-plane/membership-state.ts";
import type { Fault } from "./faults.ts";
import { BrokenInvariant } from "./judge.ts";
import { SimulatedAgent } from "./simulated-agent.ts";
import { SimulatedRunner } from "./simulated-runner.ts";
import { randomOf, VirtualNetwork, type VirtualTime } from "./virtual-network.ts";

export const leaseMs = 2000;
export const beatMs = 400;
/** An agent that nobody hears ends its workers so long after. */
export const cutOffMs = 3000;
export const tickMs = 250;

const lenient = { maxRestarts: 10_000, restartWindowMs: 1000, heartbeatTimeoutMs: 4000, stallMs: 30_000 };

export type StepRecord = { readonly step: number; readonly items: readonly string[] };

/** How many ranks there are, and on which node the first one is. */
export type Layout = { readonly numMakers: number; readonly numTrainers: number; readonly shift: number };

export type Scenario = {
  readonly numNodes: number;
  /** by step; where it differs from the one before, the plan changes between the two */
  readonly layouts: readonly Layout[];
  readonly numSteps: number;
  readonly numPrompts: number;
  readonly capacity: number;
  /** makers and trainers of one node share a device */
  readonly sharesDevices: boolean;
  readonly overlapsSteps: boolean;
  /** workers load under their lock before they are ready */
  readonly loads: boolean;
  /** their memory leaves and comes back tag by tag */
  readonly tellsTags: boolean;
  /** they hold one state together, so that they start over together */
  readonly trainersAreGroup: boolean;
  /** with a call of their own in each step, which a restarted process repeats before it is ready */
  readonly makersPull: boolean;
  /** they take, make and commit several prompts at once */
  readonly makersStream: boolean;
  /** processes stay when the number of their group's ranks changes */
  readonly resizes: boolean;
  /** of calls that are under way when a peer of their process dies, how many miss it and end */
  readonly missesPeers: number;
  /** which waiting item or call goes first in both channels, whose items weigh differently */
  readonly pick: PolicyName;
  /** trainers that hold one state together take in rounds (C8) */
  readonly takesInRounds: boolean;
  /** from a step's end to the next one's beginning */
  readonly restMs: number;
};

/** `others` draws what was added later, so that seeds keep the faults and times that they had. */
export function drawScenario(random: () => number, others: () => number): Scenario {
  const upTo = (low: number, high: number) => low + Math.floor(random() * (high - low + 1));
  const numSteps = upTo(1, 3);
  const layouts: Layout[] = [];
  for (let step = 0; step < numSteps; step++) {
    const before = layouts[step - 1];
    const isNew = before === undefined || random() < 0.3;
    layouts.push(isNew ? { numMakers: upTo(1, 2), numTrainers: upTo(1, 3), shift: upTo(0, 2) } : before);
  }
  return {
    numNodes: upTo(1, 3),
    layouts,
    numSteps,
    numPrompts: upTo(1, 6),
    capacity: upTo(1, 8),
    sharesDevices: random() < 0.5,
    overlapsSteps: random() < 0.5,
    trainersAreGroup: random() < 0.4,
    makersPull: random() < 0.4,
    resizes: random() < 0.5,
    missesPeers: random() < 0.4 ? random() : 0,
    restMs: 0,
    loads: random() < 0.5,
    makersStream: random() < 0.5,
    tellsTags: random() < 0.5,
    pick: (["fifo", "fifo", "priority", "least-loaded", "weight"] as const)[Math.floor(others() * 5)] as PolicyName,
    takesInRounds: others() < 0.5,
  };
}

/** What a prompt, and what is made of it, is in a channel: its weight and priority depend on its name alone. */
export const itemOf = (payload: string) => {
  const weight = 1 + ((Number.parseInt(payload.slice(payload.indexOf(".") + 1), 10) * 7) % 5);
  return { payload, sizeBytes: 1, weight, priority: weight % 3 };
};

/** Of a run that shares its devices with others, each a cluster of its own. */
export type Sharing = {
  readonly name: string;
  readonly time: VirtualTime;
  /** by device, of all runs */
  readonly computing: Map<string, ReadonlySet<string>>;
  /** Whether a worker may compute on a device beside one of another run; as `run: worker`. */
  readonly mayMeet: (process: string, other: string) => boolean;
  /** A runner asks for leases by what this returns. */
  readonly join: (runner: SimulatedRunner) => (effect: LeaseEffect) => void;
  /** Its processes are ended, and then another one begins. */
  readonly left: (runner: SimulatedRunner) => void;
};
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
  /** told what goes into the state machine of each runner */
  readonly recorder: ((header: RecordingHeader, turn: RecordedTurn) => void) | undefined;
  readonly sharing: Sharing | undefined;
  readonly #computing: Map<string, ReadonlySet<string>>;
  readonly limits: SupervisionLimits;

  constructor(
    seed: number,
    scenario: Partial<Scenario> = {},
    limits: Partial<SupervisionLimits> = {},
    recorder?: SimulatedCluster["recorder"],
    sharing?: Sharing,
  ) {
    this.recorder = recorder;
    this.sharing = sharing;
    this.#computing = sharing?.computing ?? new Map();
    this.network = new VirtualNetwork(seed, sharing?.time);
    this.scenario = { ...drawScenario(this.network.random, randomOf(seed * 13 + 7)), ...scenario };
    this.limits = { ...lenient, ...limits };
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
        if (!this.sharing) network.after(durationMs, () => this.startRunner());
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

  /** L1, L3, PD2, PD10, LL4: whatever locks and leases say, no two processes compute on one device that may not, and no three. */
  computes(device: string, worker: string): void {
    const process = this.#processOf(worker);
    const others = [...(this.#computing.get(device) ?? [])].filter((each) => each !== process);
    if (others.length > 1 || others.some((other) => this.sharing?.mayMeet(process, other) !== true))
      throw new BrokenInvariant(`L1: '${process}' computes on '${device}' while '${others}' does`);
    this.#computing.set(device, new Set([...others, process]));
  }

  computesNoMore(device: string, worker: string): void {
    const others = [...(this.#computing.get(device) ?? [])].filter((each) => each !== this.#processOf(worker));
    this.#computing.set(device, new Set(others));
  }

  #processOf(worker: string): string {
    return this.sharing === undefined ? worker : `${this.sharing.name}: ${worker}`;
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

/** L3, C3, at the end of a run. */
export function expectNothingHeld(state: RunnerState): void {
  const { holds, waiting } = state.lockSnapshot();
  // A process that comes back last loads, and repeats calls that nobody waits for.
  const isComing = ({ worker }: { readonly worker: string }) =>
    ["loading", "replaying"].includes(state.rank(worker)?.phase ?? "");
  if (![...holds, ...waiting].every(isComing))
    throw new BrokenInvariant(`L3: a lock is stuck at the end: ${JSON.stringify({ holds, waiting })}`);
  const left = state.channels.filter(({ depth }) => depth > 0);
  if (left.length > 0) throw new BrokenInvariant(`C3: items are left in ${left.map(({ channel }) => channel).join()}`);
}
