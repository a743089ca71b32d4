/**
 * Several simulated runs on the devices of one machine: a pool, which other processes have now and then, lends the devices, by
 * the shipped machines at both ends. Workers and runners are killed and stop; what a dead runner leaves is ended before its
 * devices are free.
 */
import {
  type PoolConfig,
  type PoolMember,
  type PoolReply,
  type PoolRequest,
  RuntimeConfig,
  type Work,
} from "@treadle/contracts";
import { DevicePoolState, type LeaseEffect, type PoolEffect, type PoolInput, type SharingPolicy } from "@treadle/core";
import { PoolClient } from "../../packages/runtime/src/runner/nodes/pool-client.ts";
import { drawFaults, faultsUntilMs, longestMs } from "./faults.ts";
import { BrokenInvariant } from "./judge.ts";
import { SimulatedCluster } from "./simulated-cluster.ts";
import type { SimulatedRunner } from "./simulated-runner.ts";
import { VirtualNetwork, VirtualTime } from "./virtual-network.ts";

/** What one machine does to its runs; node agents and their networks are not of it. */
const kinds = ["kill-worker", "pause-worker", "kill-runner", "pause-runner"];
const [tickMs, beatMs, beatLimitMs, yieldMs] = [100, 500, 6000, 60_000];
/** From the end of a runner until nothing that it has started is left. */
const cleanupMs = 300;
const restartMs = 200;
const deadlineMs = faultsUntilMs + longestMs + 300_000;
const maxEvents = 1_500_000;
const tokensAnEpoch = 2 ** 20;
const devices = [0, 1, 2, 3, 4].map((index) => ({ id: `node0/cpu:${index}`, memoryMiB: 100 }));
const config = RuntimeConfig.parse({});
const componentOf = (work: Work): string => work.split("@")[0] as string;

/** A runner's end of the pool. */
type End = {
  readonly run: string;
  readonly runner: SimulatedRunner;
  /** the process that it follows, counted */
  epoch: number;
  readonly reply: (reply: PoolReply) => void;
  readonly again: () => void;
};

class SharedMachine {
  readonly time = new VirtualTime();
  readonly #network: VirtualNetwork;
  readonly #clusters = new Map<string, SimulatedCluster>();
  readonly #members = new Map<string, PoolMember>();
  /** of those that were admitted, as a pool's log has it */
  readonly #admitted = new Map<string, Readonly<Record<string, number>>>();
  readonly #ends = new Map<string, End>();
  readonly #limits;
  readonly #policy: SharingPolicy;
  #epoch = 0;
  #pool: DevicePoolState;

  constructor(seed: number) {
    this.#network = new VirtualNetwork(seed * 31 + 5, this.time);
    const { random } = this.#network;
    const oneOf = (...all: readonly number[]) => all[Math.floor(random() * all.length)] as number;
    const runs = Array.from({ length: oneOf(2, 2, 3) }, (_, index) => `run${index}`);
    const turns = { turnMs: oneOf(1, 50, 1000), patienceMs: oneOf(1, 200, 5000) };
    this.#limits = { residents: runs.length, ...turns, yieldMs, beatLimitMs };
    const meetings = random();
    const mayMeet = (a: string, b: string): boolean =>
      [...`${[a, b].sort()}`].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) | 0, seed) % 100 <
      100 * meetings;
    this.#policy = {
      ...{ version: 0, worked: () => {}, gone: () => {}, slowdown: () => 1.2 },
      sharesNow: ({ waiter, holders }) => ({
        shares: holders.every(({ work }) => mayMeet(componentOf(work as Work), componentOf(waiter.work as Work))),
        why: "drawn",
      }),
    };
    this.#pool = new DevicePoolState(this.#limits, 0, this.#policy);
    const shares = random() < 0.5;
    const computing = new Map<string, ReadonlySet<string>>();
    for (const [index, name] of runs.entries()) {
      const traits = { priority: oneOf(0, 0, 1), weight: oneOf(0.5, 1, 2) };
      const maxSlowdown = index === 0 && random() < 0.3 ? { maxSlowdown: oneOf(1.5, 3) } : {};
      const share: PoolConfig["share"] = shares && random() < 0.8 ? "always" : "idle";
      this.#members.set(name, { ...traits, ...maxSlowdown, share, devices });
      const join = (runner: SimulatedRunner) => this.#join(name, runner);
      const left = (runner: SimulatedRunner) => this.#left(name, runner);
      const sharing = { name, time: this.time, computing, join, left, mayMeet: this.#mayMeet(mayMeet) };
      const own = seed * 4 + index;
      const cluster = new SimulatedCluster(own, { numNodes: 1 }, {}, undefined, sharing);
      cluster.network.loss = 0; // a machine loses nothing of what its processes say
      cluster.network.doubling = 0;
      this.#clusters.set(name, cluster);
      for (const fault of drawFaults(own)) if (kinds.includes(fault.kind)) cluster.inject(fault);
    }
    for (let changes = Math.floor(random() * 4); changes > 0; changes--)
      this.#network.after(random() * faultsUntilMs, () => this.#changeHands());
    this.#every(tickMs, () => this.#feed({ type: "tick" }));
    this.#every(beatMs, () => {
      for (const end of [...this.#ends.values()]) end.runner.run(() => this.#toPool(end, { type: "beat" }));
    });
  }

  get isOver(): boolean {
    return [...this.#clusters.values()].every(
      ({ runnerHasFinished, agents }) =>
        runnerHasFinished && agents.every(({ processes }) => processes.every(({ isAlive }) => !isAlive)),
    );
  }

  report(): string {
    const view = this.#pool.view(this.time.nowMs).map((each) => JSON.stringify(each));
    return [...view, ...[...this.#clusters.values()].map(({ runner }) => runner?.report())].join("\n");
  }

  /** PD10: of two runs that both say so, works that may meet. */
  #mayMeet(works: (a: string, b: string) => boolean): (process: string, other: string) => boolean {
    return (...processes) => {
      const named = processes.map((process) => process.split(": ") as [string, string]);
      const share = named.every(([run]) => this.#members.get(run)?.share === "always");
      const [a, b] = named.map(([, worker]) => worker.slice(0, worker.lastIndexOf("/"))) as [string, string];
      return share && named[0]?.[0] !== named[1]?.[0] && works(a, b);
    };
  }

  #every(ms: number, act: () => void): void {
    this.#network.after(ms, () => {
      act();
      this.#every(ms, act);
    });
  }

  #join(run: string, runner: SimulatedRunner): (effect: LeaseEffect) => void {
    const acts = new Map<string, (effect: LeaseEffect) => void>();
    let [reply, again]: [End["reply"], End["again"]] = [() => {}, () => {}];
    const client = new PoolClient({
      send: (request) => this.#toPool(end, request),
      onReply: (listener) => {
        reply = listener;
      },
      onAgain: (listener) => {
        again = listener;
      },
      onLost: () => {},
    });
    client.close(); // beats are those of virtual time
    const end: End = { run, runner, epoch: this.#epoch, reply: (said) => reply(said), again: () => again() };
    this.#ends.set(run, end);
    const loop = {
      on: (type: string, act: (effect: never) => void) => acts.set(type, act as (effect: LeaseEffect) => void),
      feed: (input: Parameters<SimulatedRunner["leaseSaid"]>[0]) => runner.leaseSaid(input),
    };
    client.serve(loop as never);
    const { share = "idle" } = this.#members.get(run) as PoolMember;
    void client.join({ ...config, pool: { ...config.pool, share } }, run).catch(() => {});
    return (effect) => acts.get(effect.type)?.(effect);
  }

  /** PS2. */
  #left(run: string, runner: SimulatedRunner): void {
    this.#ends.delete(run);
    const cluster = this.#clusters.get(run);
    this.#network.after(cleanupMs, () => {
      for (const agent of cluster?.agents ?? []) agent.release(runner.incarnation);
      this.#admitted.delete(run);
      this.#feed({ type: "gone", run });
      this.#network.after(restartMs, () => cluster?.startRunner());
    });
  }

  /** PS4: another process has the pool; runs learn it one by one, and hear nothing from the one before from then on. */
  #changeHands(): void {
    this.#epoch++;
    this.#pool = new DevicePoolState(this.#limits, this.#epoch * tokensAnEpoch, this.#policy);
    for (const [run, memoryMiB] of this.#admitted)
      this.#feed({ type: "restore", run, member: this.#members.get(run) as PoolMember, memoryMiB });
    for (const end of this.#ends.values()) this.#network.after(this.#network.between(0, 800), () => this.#follow(end));
  }

  #follow(end: End): void {
    end.runner.run(() => {
      if (end.epoch === this.#epoch) return;
      end.epoch = this.#epoch;
      end.again();
    });
  }

  #toPool(end: End, request: PoolRequest): void {
    const { run, epoch } = end;
    const member = this.#members.get(run) as PoolMember;
    this.#network.link(run, "pool", () => {
      if (this.#ends.get(run) !== end || epoch !== this.#epoch) return;
      this.#feed(request.type === "join" ? { ...request, member, run } : { ...request, run });
    });
  }

  #feed(input: PoolInput): void {
    for (const effect of this.#pool.handle(input, this.time.nowMs)) this.#act(effect);
  }

  #act(effect: PoolEffect): void {
    const { run } = effect;
    const end = this.#ends.get(run);
    if (effect.type === "admitted") this.#admitted.set(run, effect.memoryMiB);
    if (effect.type === "end") {
      if (!effect.why.includes("no sign of life"))
        throw new BrokenInvariant(`LL3, PD9: ${effect.why}\n${this.report()}`);
      end?.runner.die();
      return;
    }
    if (end === undefined) return; // it is gone, and that is on its way here
    if (effect.type === "refused") throw new BrokenInvariant(`PD3: run '${run}' was refused: ${effect.why}`);
    const { run: _, ...reply } = effect;
    const { epoch } = end;
    this.#network.link("pool", run, () => {
      end.runner.run(() => {
        if (this.#ends.get(run) === end && end.epoch === epoch) end.reply(reply);
      });
    });
  }
}

/** What went wrong with the runs of that seed; undefined when nothing did. */
export function sharedFailureOf(seed: number): string | undefined {
  try {
    const machine = new SharedMachine(seed);
    for (let events = 0; !machine.isOver; events++)
      if (!machine.time.step() || machine.time.nowMs > deadlineMs || events > maxEvents)
        throw new BrokenInvariant(`S3: no end in sight at ${Math.round(machine.time.nowMs)} ms\n${machine.report()}`);
    return undefined;
  } catch (error) {
    return error instanceof BrokenInvariant ? error.message : String((error as Error).stack);
  }
}
