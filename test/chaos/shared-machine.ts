/** Three NATS servers, a pool of this machine's devices, and two runs that share them, each to be struck. */
import { existsSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type { RunEvent } from "@treadle/contracts";
import { expectWholeLedger, pidsOf } from "../support/ledger.ts";
import { type NodeProcess, NodesWorld } from "../support/nodes.ts";
import { conflictsFile } from "../support/workers/exclusive-devices.ts";
import { Absences, type Part, placed } from "./absences.ts";
import type { Disaster, Strike, Struck } from "./chaos.ts";
import { killServer, type Servers, signalOne, suspendServer } from "./disasters.ts";
import { batch, endMs, expectOver, within } from "./judging.ts";
import { NatsCluster } from "./nats-cluster.ts";
import { committedSteps, isRunning, processesOf, said, strikable } from "./struck-processes.ts";

const numServers = 3;
const pool = "shared";
/** A run that stands still for longer than strikes last is ended. */
const poolFlags = ["--replicas", "3", "--turn", "0.5", "--yield-limit", "30", "--beat-limit", "30"];
const names = ["a", "b"];
const againMs = 1000;

/** A run as a user starts it and goes on with it, in a folder of runs for itself. */
class PooledRun {
  readonly #world: NodesWorld<NatsCluster>;
  readonly #runs: string;
  readonly #log: (text: string) => void;
  /** its runner, as strikes keep it away */
  readonly part: Part;
  readonly gaveUp: string[] = [];
  numRunners = 0;
  runner: NodeProcess | undefined;
  #isKilling = false;
  #isOver = false;

  constructor(world: NodesWorld<NatsCluster>, name: string, log: (text: string) => void) {
    this.part = `runner ${name}`;
    this.#world = world;
    this.#runs = join(world.runs, name);
    this.#log = (text) => log(`run '${name}' ${text}`);
  }

  get runId(): string | undefined {
    try {
      return readdirSync(this.#runs).find((name) => !name.startsWith("."));
    } catch {
      return undefined; // none has begun
    }
  }

  get folder(): string {
    return join(this.#runs, this.runId ?? "none");
  }

  get steps(): number {
    return committedSteps(this.folder);
  }

  get events(): RunEvent[] {
    if (this.runId === undefined) return [];
    const lines = readFileSync(join(this.folder, "events.jsonl"), "utf8").split("\n");
    return lines.flatMap((line) => {
      try {
        return [JSON.parse(line) as RunEvent];
      } catch {
        return []; // who wrote it was killed
      }
    });
  }

  get workers(): number[] {
    const own = new Set(processesOf(this.#world)); // a number may be another's by now
    return pidsOf(this.events).filter((pid) => own.has(pid));
  }

  /** Begins it, or goes on with it, unless somebody does already. */
  start(steps = 100_000): NodeProcess | undefined {
    if (this.#isOver || isRunning(this.runner)) return undefined;
    this.#isKilling = false;
    const runner = this.#command(steps);
    this.runner = runner;
    this.numRunners++;
    runner.child.once("exit", (code, signal) => {
      if (this.#isKilling || this.#isOver || this.runner !== runner) return;
      setTimeout(() => this.start(), againMs);
      if (runner.output().includes(`no pool '${pool}' is there`)) return; // as a user would be told
      const why = `ended with ${code ?? signal}: ${runner.output().trim().slice(-500)}`;
      this.gaveUp.push(why);
      this.#log(why);
    });
    return runner;
  }

  async kill(): Promise<void> {
    this.#isKilling = true;
    await this.runner?.kill();
  }

  /** Lets the step end; the exit code, or the signal that ended the runner. */
  async stop(): Promise<number | NodeJS.Signals | null> {
    this.#isOver = true;
    const child = this.runner?.child;
    child?.kill("SIGINT");
    await within(endMs, `the run in '${this.#runs}' to stop when it is asked to`, () => !isRunning(this.runner));
    return child?.exitCode ?? child?.signalCode ?? null;
  }

  /** J1: whole; then again after two steps more, which are made together with other runs. */
  async goOn(): Promise<void> {
    const { steps } = this;
    await expectWholeLedger(this.folder, steps, batch);
    const wanted = steps + 2;
    this.#log(`has ${steps} steps: resumed from the command line for two more`);
    const { child, output } = this.#command(wanted);
    await within(endMs, "it to end", () => child.exitCode !== null || child.signalCode !== null);
    if (child.exitCode !== 0)
      throw new Error(`'treadle resume' ended with ${child.exitCode}: ${output().slice(-2000)}`);
    await expectWholeLedger(this.folder, wanted, batch);
  }

  expectOver(): Promise<void> {
    return expectOver(this.#world, this.#runs, this.runId as string, this.#log);
  }

  #command(steps: number): NodeProcess {
    const { runId } = this;
    const own = [
      ...[`steps=${steps}`, `batch=${batch}`, "observe.record=true", "pauseMs=30", "payload=2000"],
      // Each run has half of a device's memory.
      ...[`devicesIn=${join(this.#world.root, "devices")}`, "cluster.memoryPerDeviceMiB=200"],
      ...["supervision.maxRestarts=10", "supervision.heartbeatTimeoutMs=3000"],
    ];
    const what =
      runId === undefined ? ["run", join(this.#world.project, "support/workflows/ledger")] : ["resume", runId];
    const settings = runId === undefined ? own : own.slice(0, 1);
    return this.#world.start([
      ...[...what, "--pool", pool, "--json", "--runs", this.#runs, ...this.#world.flagsOf(), "--replicas", "3"],
      ...settings.flatMap((each) => ["--set", each]),
    ]);
  }
}

export class SharedMachine implements Struck {
  readonly #world: NodesWorld<NatsCluster>;
  readonly #random: () => number;
  readonly #runs: readonly PooledRun[];
  readonly #absences = new Absences();
  /** the newest last */
  readonly #pools: NodeProcess[] = [];

  private constructor(world: NodesWorld<NatsCluster>, random: () => number, log: (text: string) => void) {
    this.#world = world;
    this.#random = random;
    this.#runs = names.map((name) => new PooledRun(world, name, log));
  }

  static async open(random: () => number, log: (text: string) => void): Promise<SharedMachine> {
    const places = Array.from({ length: numServers }, () => ({ host: "127.0.0.1", inside: [] }));
    const world = await NodesWorld.over(await NatsCluster.start(places));
    world.environment = strikable;
    mkdirSync(join(world.root, "devices"));
    const machine = new SharedMachine(world, random, log);
    // The servers elect who keeps what before they keep anything.
    await persistently(4, () => machine.#startPool());
    return machine;
  }

  begin(): void {
    for (const run of this.#runs) run.start();
  }

  readonly batch = batch;

  get steps(): number[] {
    return this.#runs.map(({ steps }) => steps);
  }

  get events(): RunEvent[] {
    return this.#runs.flatMap(({ events }) => events);
  }

  get numRunners(): number {
    return this.#runs.reduce((sum, { numRunners }) => sum + numRunners, 0);
  }

  get gaveUp(): string[] {
    return this.#runs.flatMap(({ gaveUp }) => gaveUp);
  }

  get standstills(): boolean[] {
    return this.#runs.map(({ part }) => this.#absences.isStandstill([[part], ["pool"], placed("server", numServers)]));
  }

  saidSince(ms: number): string[] {
    return said(this.events, ms);
  }

  get disasters(): Readonly<Record<string, Disaster>> {
    const worker = (signal: NodeJS.Signals): Strike => {
      return () => {
        const { workers } = this.#someRun();
        return signalOne(workers, this.#random, signal);
      };
    };
    return {
      "worker killed": { weight: 4, strike: worker("SIGKILL") },
      "worker suspended": { weight: 3, strike: worker("SIGSTOP") },
      "child left behind": { weight: 2, strike: worker("SIGUSR2") },
      "runner killed": { weight: 3, strike: () => this.#killRunner() },
      "runner suspended": { weight: 2, strike: () => this.#suspendRunner() },
      "pool killed": { weight: 3, strike: () => this.#killPool() },
      "pool suspended": { weight: 2, strike: () => this.#suspend(this.#pool, ["pool"]) },
      "another pool started": { weight: 1, strike: () => this.#startAnotherPool() },
      "pool taken over": { weight: 2, strike: () => this.#takePoolOver() },
      "NATS server killed": { weight: 2, strike: () => killServer(this.#servers) },
      "NATS server suspended": { weight: 1, strike: () => suspendServer(this.#servers) },
    };
  }

  /** J1, S4. */
  async judge(): Promise<void> {
    const codes = await Promise.all(this.#runs.map((run) => run.stop()));
    const stopped = 130;
    if (codes.some((code) => code !== stopped))
      throw new Error(`runs that were asked to stop ended with ${codes.join(" and ")}`);
    await Promise.all(this.#runs.map((run) => run.goOn()));
    const devices = join(this.#world.root, "devices");
    if (existsSync(join(devices, conflictsFile))) throw new Error(readFileSync(join(devices, conflictsFile), "utf8"));
    const pool = this.#pool;
    pool?.child.kill("SIGTERM");
    await within(endMs, "the pool to leave", () => pool?.child.exitCode === 0);
    await within(endMs, "every process to be gone", () => processesOf(this.#world).length === 0);
    for (const run of this.#runs) await run.expectOver();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#world.close();
  }

  get #servers(): Servers {
    const { nats } = this.#world;
    return { nats, absences: this.#absences, somePlace: () => Math.floor(this.#random() * numServers) };
  }

  #someRun(): PooledRun {
    return this.#runs[Math.floor(this.#random() * this.#runs.length)]!;
  }

  get #pool(): NodeProcess | undefined {
    return this.#pools.findLast(isRunning);
  }

  async #startPool(): Promise<void> {
    if (this.#pool === undefined) this.#pools.push(await this.#world.startPool(pool, poolFlags));
  }

  async #killPool() {
    const pool = this.#pool;
    if (pool === undefined) return undefined;
    const back = this.#absences.begin(["pool"]);
    await pool.kill();
    return () => this.#startPool().then(back);
  }

  /** Refused while the one of that name is heard. */
  async #startAnotherPool() {
    try {
      this.#pools.push(await this.#world.startPool(pool, poolFlags));
    } catch (error) {
      if (!String(error).includes(`has pool '${pool}', and stays`)) return undefined; // no server let it in
    }
    return async () => {};
  }

  /** The one before is not heard, and ends as soon as it hears of the other (PS4). */
  async #takePoolOver() {
    const before = this.#pool;
    before?.child.kill("SIGSTOP");
    const mend = async () => {
      before?.child.kill("SIGCONT");
      await within(endMs, "the pool before to end", () => !isRunning(before));
    };
    try {
      this.#pools.push(await this.#world.startPool(pool, poolFlags));
      return mend;
    } catch {
      before?.child.kill("SIGCONT");
      return undefined; // no server let it in
    }
  }

  async #killRunner() {
    const run = this.#someRun();
    if (!isRunning(run.runner)) return undefined;
    const back = this.#absences.begin([run.part]);
    await run.kill();
    return async () => {
      run.start();
      back();
    };
  }

  async #suspendRunner() {
    const { runner, part } = this.#someRun();
    return this.#suspend(runner, [part]);
  }

  async #suspend(process: NodeProcess | undefined, parts: readonly Part[]) {
    if (process === undefined || !isRunning(process)) return undefined;
    const back = this.#absences.begin(parts);
    process.child.kill("SIGSTOP");
    return async () => {
      process.child.kill("SIGCONT");
      back();
    };
  }
}

async function persistently(times: number, act: () => Promise<void>): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    try {
      await act();
      return;
    } catch (error) {
      if (attempt === times) throw error;
      await delay(againMs);
    }
  }
}
