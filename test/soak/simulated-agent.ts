/** A node: its agent, which beats, starts and ends processes and gives up when cut off, and what runs there. */
import type { MembershipState } from "../../packages/transport/src/control-plane/membership-state.ts";
import { beatMs, cutOffMs, type SimulatedCluster, tickMs } from "./simulated-cluster.ts";
import { SimulatedWorker } from "./simulated-worker.ts";

/** Longer than any runner takes to be heard after its first order. */
const unseenMs = 3000;

export type SpawnOrder = {
  readonly session: number;
  readonly worker: string;
  readonly life: number;
  readonly devices: readonly string[];
};

export class SimulatedAgent {
  readonly cluster: SimulatedCluster;
  readonly node: string;
  incarnation = 0;
  isAlive = false;
  clockOffsetMs = 0;
  processes: SimulatedWorker[] = [];
  #pausedUntilMs = 0;
  #waiting: (() => void)[] = [];
  #runs!: MembershipState;
  #cutOffSinceMs: number | undefined;
  #wasConnected = true;
  /** ends that the runner has not confirmed */
  readonly #reports = new Map<string, { readonly session: number; readonly worker: string; readonly life: number }>();

  constructor(cluster: SimulatedCluster, node: string) {
    this.cluster = cluster;
    this.node = node;
    this.start();
  }

  get nowMs(): number {
    return this.cluster.network.nowMs + this.clockOffsetMs;
  }

  start(): void {
    if (this.isAlive) return;
    this.isAlive = true;
    this.incarnation++;
    this.#pausedUntilMs = 0;
    this.#waiting = [];
    this.#reports.clear();
    this.#cutOffSinceMs = undefined;
    this.#runs = this.cluster.newMembership(this.nowMs);
    if (this.cluster.runnerIncarnation > 0) this.runnerAnnounced(this.cluster.runnerIncarnation);
    this.#announce();
    const { incarnation } = this;
    const every = (ms: number, act: () => void) => {
      const again = () => {
        if (!this.isAlive || this.incarnation !== incarnation) return;
        this.run(act);
        this.cluster.network.after(ms, again);
      };
      this.cluster.network.after(this.cluster.network.between(0, ms), again);
    };
    every(beatMs, () => this.#beat());
    every(tickMs, () => this.#tick());
    every(1000, () => this.#sendReports());
  }

  /** A kill: whatever it had started ends with it. */
  die(): void {
    if (!this.isAlive) return;
    this.isAlive = false;
    for (const process of this.processes) process.die("its agent is gone");
  }

  pause(ms: number): void {
    this.#pausedUntilMs = Math.max(this.#pausedUntilMs, this.cluster.network.nowMs + ms);
    this.cluster.network.after(ms, () => {
      if (this.cluster.network.nowMs < this.#pausedUntilMs) return;
      for (const act of this.#waiting.splice(0)) this.run(act);
    });
  }

  /** What reaches a stopped process waits for it. */
  run(act: () => void): void {
    if (!this.isAlive) return;
    if (this.cluster.network.nowMs < this.#pausedUntilMs) this.#waiting.push(act);
    else act();
  }

  /** Whoever hears a beat without its entry asks for that, so it is told when it can be reached. */
  runnerAnnounced(incarnation: number): void {
    const tell = () => {
      if (!this.isAlive || incarnation !== this.cluster.runnerIncarnation) return;
      if (!this.cluster.network.hasBus(this.node, "runner")) this.cluster.network.after(200, tell);
      else
        this.run(() =>
          this.#runsChanged(this.#runs.entry({ kind: "run", name: "run", incarnation, body: {} }, 0, this.nowMs)),
        );
    };
    this.cluster.network.after(5, tell);
  }

  heardRunner(incarnation: number, goodbye: boolean): void {
    this.run(() =>
      this.#runsChanged(
        goodbye
          ? this.#runs.goodbye("run", "run", incarnation, "it ended")
          : this.#runs.beat("run", "run", incarnation, this.nowMs),
      ),
    );
  }

  /** RU1: the same order twice starts one process. */
  spawn({ session, worker, life, devices }: SpawnOrder): void {
    if (this.processes.some((each) => each.session > session)) return;
    if (this.processes.some((each) => each.worker === worker && each.life === life && each.session === session)) return;
    const { network } = this.cluster;
    const process = new SimulatedWorker(this, session, worker, life, devices);
    this.processes.push(process);
    network.after(network.between(30, 120), () => process.start());
  }

  end(session: number, worker: string, life: number): void {
    const found = this.processes.find((p) => p.session === session && p.worker === worker && p.life === life);
    // Who is not here has ended, or never began.
    if (found?.isAlive) found.die("ended");
    else this.exited(session, worker, life);
  }

  /** ND2: ends everything of sessions up to this one. */
  release(session: number): void {
    for (const process of this.processes) if (process.session <= session) process.die("released");
    this.processes = this.processes.filter((process) => process.isAlive);
  }

  exited(session: number, worker: string, life: number): void {
    this.#reports.set(`${session} ${worker} ${life}`, { session, worker, life });
    this.run(() => this.#sendReports());
  }

  confirmed(session: number, worker: string, life: number): void {
    this.#reports.delete(`${session} ${worker} ${life}`);
  }

  #announce(): void {
    const { cluster, incarnation } = this;
    const tell = () => {
      if (!this.isAlive || this.incarnation !== incarnation) return;
      if (!cluster.runner?.isAlive || !cluster.network.hasBus(this.node, "runner")) {
        cluster.network.after(200, tell);
        return;
      }
      cluster.runner.entered(this.node, incarnation);
    };
    cluster.network.after(5, tell);
  }

  #beat(): void {
    const { cluster, node, incarnation } = this;
    cluster.network.bus(node, "runner", () => cluster.runner?.heardAgent(node, incarnation));
    for (const process of this.processes) {
      if (!process.beats) continue;
      const { session, worker, life } = process;
      cluster.network.bus(node, "runner", () => cluster.runner?.heardWorker(session, worker, life));
    }
  }

  #tick(): void {
    const { nowMs } = this;
    const isConnected = this.cluster.network.hasBus(this.node, "runner");
    if (isConnected !== this.#wasConnected) this.#runs.connection(isConnected, nowMs);
    this.#wasConnected = isConnected;
    this.#cutOffSinceMs = isConnected ? undefined : (this.#cutOffSinceMs ?? nowMs);
    if (this.#cutOffSinceMs !== undefined && nowMs - this.#cutOffSinceMs > cutOffMs)
      this.release(Number.POSITIVE_INFINITY);
    this.#runsChanged(this.#runs.tick(nowMs));
    if (isConnected) this.#dropUnseen();
  }

  /** A runner that died before it was ever heard here leaves nothing that says so. */
  #dropUnseen(): void {
    const present = this.#runs.members("run");
    for (const process of this.processes) {
      const isSeen = present.some(({ incarnation }) => incarnation === process.session);
      if (!isSeen && this.cluster.network.nowMs - process.spawnedMs > unseenMs)
        process.die("its runner was never seen");
    }
  }

  /** NS2: what belongs to a runner that is gone ends. */
  #runsChanged(changes: ReturnType<MembershipState["tick"]>): void {
    for (const { type, member } of changes) if (type === "left") this.release(member.incarnation);
  }

  #sendReports(): void {
    const { cluster, node } = this;
    for (const { session, worker, life } of this.#reports.values()) {
      cluster.network.bus(node, "runner", () => cluster.runner?.workerExited(node, session, worker, life));
    }
  }
}
