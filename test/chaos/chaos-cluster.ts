/** Three NATS servers, three node agents and one run over them, each to be struck. */
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type { RunEvent } from "@treadle/contracts";
import { isAlive } from "../support/cluster.ts";
import { expectWholeLearningLedger } from "../support/learning-ledger.ts";
import { expectWholeLedger, pidsOf } from "../support/ledger.ts";
import { type NodeProcess, NodesWorld, type RunProcess } from "../support/nodes.ts";
import { projectRoot } from "../support/project.ts";
import { startTreadle } from "../support/treadle.ts";
import { Absences, placed } from "./absences.ts";
import type { Disaster, Struck as StruckRuns } from "./chaos.ts";
import { ClusterNetwork, type Place } from "./cluster-network.ts";
import { clusterDisasters } from "./disasters.ts";
import { batch, endMs, expectOver, within } from "./judging.ts";
import { NatsCluster } from "./nats-cluster.ts";
import { committedSteps, isRunning, processesOf, said, strikable } from "./struck-processes.ts";
import { expectLearntAsUndisturbed } from "./undisturbed.ts";
import { expectWholeHorizons } from "./whole-horizons.ts";

const numPlaces = 3;
const replicas = "3";
/** A node that is cut off ends its workers after so many seconds. */
const limitSeconds = "6";

/** `isShipped`: below `workflows`, and judged by what it learns undisturbed. */
type Struck = {
  readonly name: string;
  readonly overrides: readonly string[];
  readonly isShipped?: boolean;
  /** default `batch` */
  readonly batch?: number;
  readonly agentFlags?: readonly string[];
  readonly expectWhole?: (folder: string, steps: number, batch: number) => Promise<void>;
};

const shipped = (name: string): string => join(projectRoot, "workflows", name);
// However many steps there are, each learns at the same rate, and nothing but steps takes time.
const quiet = ["evaluation.everySteps=1000000", "checkpoints.everySteps=1000000"];

/** What is struck. `embedded`: a policy that learns on the embedded engine; `ledger`: items that only wait; the others are shipped. */
export const subjects = {
  embedded: { name: "learning-ledger", overrides: [], expectWhole: expectWholeLearningLedger },
  ledger: { name: "ledger", overrides: ["pauseMs=30", "payload=2000"], expectWhole: expectWholeLedger },
  "reasoning-grpo": {
    name: shipped("reasoning-grpo"),
    overrides: ["learningRate=0.002", ...quiet],
    isShipped: true,
  },
  "tool-agent": {
    ...{ name: shipped("tool-agent"), overrides: quiet, isShipped: true },
    agentFlags: ["--allow-program", "/bin/sh"], // not every machine has control groups
  },
  "embodied-ppo": {
    ...{ name: shipped("embodied-ppo"), isShipped: true, batch: 1, expectWhole: expectWholeHorizons },
    overrides: [
      "ranks.simulator=2",
      "ranks.rollout=2",
      "horizon=64",
      "recordEvery=1000000",
      "checkpoints.everySteps=5",
    ],
  },
} satisfies Record<string, Struck>;
export type Subject = keyof typeof subjects;

export class ChaosCluster implements StruckRuns {
  readonly world: NodesWorld<NatsCluster>;
  readonly network: ClusterNetwork | undefined;
  readonly random: () => number;
  readonly subject: Subject;
  readonly agents: (NodeProcess | undefined)[] = [];
  readonly absences = new Absences();
  runner: RunProcess | undefined;
  runId: string | undefined;
  /** of all runners, in order */
  readonly runners: RunProcess[] = [];
  readonly #places: readonly Place[];
  readonly #log: (text: string) => void;
  #isKilling = false;
  #isOver = false;
  /** why runners ended that nobody had killed */
  readonly gaveUp: string[] = [];

  private constructor(
    world: NodesWorld<NatsCluster>,
    network: ClusterNetwork | undefined,
    places: readonly Place[],
    random: () => number,
    subject: Subject,
    log: (text: string) => void,
  ) {
    this.#log = log;
    this.subject = subject;
    this.world = world;
    this.network = network;
    this.#places = places;
    this.random = random;
  }

  static opens(subject: Subject) {
    return (random: () => number, log: (text: string) => void) => ChaosCluster.open(random, log, subject);
  }

  static async open(
    random: () => number,
    log: (text: string) => void,
    subject: Subject = "ledger",
  ): Promise<ChaosCluster> {
    const network = await ClusterNetwork.open(numPlaces);
    if (typeof network === "string") log(`no network will be cut: ${network}`);
    const loopback = { host: "127.0.0.1", inside: [] };
    const places = typeof network === "string" ? Array.from({ length: numPlaces }, () => loopback) : network.places;
    const { isShipped }: Struck = subjects[subject];
    const world = await NodesWorld.over(await NatsCluster.start(places), isShipped ? projectRoot : undefined);
    world.environment = strikable;
    const joined = typeof network === "string" ? undefined : network;
    const cluster = new ChaosCluster(world, joined, places, random, subject, log);
    // The servers elect who keeps what before they keep anything.
    for (let attempt = 0; ; attempt++) {
      try {
        await Promise.all(places.map((_, place) => cluster.startAgent(place)));
        return cluster;
      } catch (error) {
        if (attempt === 4) throw error;
        await new Promise((resolve) => setTimeout(resolve, 1000));
      }
    }
  }

  get batch(): number {
    const own: Struck = subjects[this.subject];
    return own.batch ?? batch;
  }

  get disasters(): Readonly<Record<string, Disaster>> {
    return clusterDisasters(this);
  }

  begin(): void {
    this.resume();
  }

  get standstills(): boolean[] {
    return [this.absences.isStandstill([["runner"], placed("node", numPlaces), placed("server", numPlaces)])];
  }

  get events(): RunEvent[] {
    return this.runners.flatMap(({ events }) => events);
  }

  get numRunners(): number {
    return this.runners.length;
  }

  get nats(): NatsCluster {
    return this.world.nats;
  }

  readonly somePlace = (): number => Math.floor(this.random() * numPlaces);

  async startAgent(place: number): Promise<void> {
    if (isRunning(this.agents[place])) return;
    this.agents[place] = await this.#startAgent(place);
  }

  /**
   * Another agent of a name: refused while the one of that place is heard; else that one ends as soon as it is heard again.
   * Resolves with whether there was one, which no server may have let in.
   */
  async startNamesake(place: number): Promise<boolean> {
    try {
      this.agents[place] = await this.#startAgent(place);
      this.#log(`a namesake took the place of agent 'n${place}', which was not heard`);
      return true;
    } catch (error) {
      return (error as Error).message.includes("is in the cluster already");
    }
  }

  async #startAgent(place: number): Promise<NodeProcess> {
    const { host, inside } = this.#places[place] as Place;
    // The first begins with the server of its place, as on machines that have one each, the second with another's.
    const { servers } = this.nats;
    const first = [servers[0], servers[2], this.nats][place]?.url as string;
    const { agentFlags = [] }: Struck = subjects[this.subject];
    const flags = [...agentFlags, "--nats", first, "--bind", host, "--replicas", replicas, "--limit", limitSeconds];
    return this.world.startNode(`n${place}`, flags, inside);
  }

  /** Begins the run, or goes on with it, unless somebody does already: of two strikes both endings come here. */
  resume(overrides: readonly string[] = []): void {
    if (this.#isOver || isRunning(this.runner)) return;
    this.#isKilling = false;
    const { name, overrides: own } = subjects[this.subject];
    const runner = this.world.startRun(
      [
        ...["steps=100000", `batch=${this.batch}`, "observe.record=true", ...own],
        ...[
          `cluster.nats.replicas=${replicas}`,
          "cluster.minNodes=1",
          "cluster.rejoinMs=0",
          "cluster.nats.leaseMs=3000",
        ],
        ...["supervision.maxRestarts=10", "supervision.heartbeatTimeoutMs=3000"],
        ...(this.network ? [`cluster.links.bind=${this.network.host}`] : []),
        ...overrides,
      ],
      this.runId ?? "new",
      this.world.runs,
      name,
    );
    this.runner = runner;
    this.runners.push(runner);
    void runner.exited.then((code) => {
      if (this.#isKilling || this.#isOver || this.runner !== runner) return;
      const threw = runner.events.find((event) => (event.type as string) === "threw") as unknown as
        | { code?: string; message: string }
        | undefined;
      const why = `${threw?.code ?? `exit code ${code}`}: ${threw?.message.slice(0, 300) ?? ""}`;
      this.gaveUp.push(why);
      this.#log(`the runner gave up: ${why}`);
      setTimeout(() => this.resume(), 1000);
    });
    void runner.event("run-started").then(
      ({ runId }) => {
        this.runId = runId;
      },
      () => {},
    );
  }

  async killRunner(): Promise<void> {
    this.#isKilling = true;
    this.runner?.child.kill("SIGKILL");
    await this.runner?.exited;
  }

  /** Lets the step end; resolves with the exit code, or with the signal that ended the runner. */
  async stop(): Promise<number | NodeJS.Signals | null> {
    this.#isOver = true;
    // One that was started a moment ago would be killed by the signal, as it does not listen yet.
    await Promise.race([this.runner?.event("run-started").catch(() => {}), this.runner?.exited]);
    this.runner?.child.kill("SIGINT");
    return (await this.runner?.exited) ?? null;
  }

  /** J1, S4. */
  async judge(): Promise<void> {
    const { world } = this;
    const runId = this.runId as string;
    const code = await Promise.race([this.stop(), delay(endMs, "no end", { ref: false })]);
    if (code !== 0) throw new Error(`the run did not stop when it was asked to: ${code}`);
    const [steps] = this.steps as [number];
    await this.#expectWhole(steps);
    const wanted = steps + 2;
    this.#log(`${steps} steps: resumed from the command line for two more`);
    const args = ["resume", runId, "--runs", world.runs, "--json", "--set", `steps=${wanted}`];
    const resumed = await startTreadle(args, undefined, world.project).finished;
    if (resumed.code !== 0)
      throw new Error(`'treadle resume' ended with ${resumed.code}: ${resumed.stderr.slice(-2000)}`);
    await this.#expectWhole(wanted);
    for (const agent of this.agents) agent?.child.kill("SIGTERM");
    await within(endMs, "the agents to leave", () => this.agents.every((agent) => agent?.child.exitCode === 0));
    await within(endMs, "every process to be gone", () => this.processes().length === 0);
    await expectOver(world, world.runs, runId, this.#log);
  }

  #expectWhole(steps: number): Promise<void> {
    const { name, overrides, expectWhole }: Struck = subjects[this.subject];
    if (expectWhole) return expectWhole(this.folder, steps, this.batch);
    const own = [...overrides, `batch=${this.batch}`];
    return expectLearntAsUndisturbed(this.folder, steps, { workflow: name, runs: this.world.root, overrides: own });
  }

  get folder(): string {
    return join(this.world.runs, this.runId ?? "");
  }

  saidSince(ms: number): string[] {
    return said(this.events, ms);
  }

  get steps(): readonly [number] {
    return [committedSteps(this.folder)];
  }

  readonly workers = (): number[] => pidsOf(this.runner?.events ?? []).filter(isAlive);

  processes(): number[] {
    return processesOf(this.world);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isOver = true;
    await this.world.close();
    await this.network?.[Symbol.asyncDispose]();
  }
}
