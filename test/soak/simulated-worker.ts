/** A worker process: the calls that it was sent, one after the other, and what it asks of the runner meanwhile. */
import type { SimulatedAgent } from "./simulated-agent.ts";

export type Call = {
  readonly id: string;
  readonly kind: "maker" | "trainer";
  readonly step: number;
  readonly max: number;
};

export type Request =
  | { readonly op: "lock" | "close" }
  | { readonly op: "release" }
  | { readonly op: "take"; readonly channel: "prompts" | "items"; readonly max: number; readonly keeps: boolean }
  | { readonly op: "put"; readonly channel: "items"; readonly items: readonly string[] };
type Command = Request | { readonly op: "work" };
/** What a `take` yields: items, or undefined at the end. */
type Program = Generator<Command, void, readonly string[] | undefined>;

function* maker({ max }: Call): Program {
  for (;;) {
    const prompts = yield { op: "take", channel: "prompts", max, keeps: false };
    if (prompts === undefined) break;
    yield { op: "lock" };
    yield { op: "work" };
    yield { op: "put", channel: "items", items: prompts };
    yield { op: "release" };
  }
  yield { op: "close" };
}

/** Holds its devices while it waits, which lends them, and its items until it ends: it is one batch. */
function* trainer({ max }: Call): Program {
  yield { op: "lock" };
  for (;;) {
    const items = yield { op: "take", channel: "items", max, keeps: true };
    if (items === undefined) break;
    yield { op: "work" };
  }
  yield { op: "release" };
  yield { op: "close" };
}

export class SimulatedWorker {
  readonly session: number;
  readonly worker: string;
  readonly life: number;
  readonly devices: readonly string[];
  readonly spawnedMs: number;
  isAlive = true;
  readonly #agent: SimulatedAgent;
  readonly #calls: Call[] = [];
  #program: Program | undefined;
  #call: Call | undefined;
  #pausedUntilMs = 0;
  #waiting: (() => void)[] = [];
  #hasStarted = false;

  constructor(agent: SimulatedAgent, session: number, worker: string, life: number, devices: readonly string[]) {
    this.#agent = agent;
    this.session = session;
    this.worker = worker;
    this.life = life;
    this.devices = devices;
    this.spawnedMs = agent.cluster.network.nowMs;
  }

  get name(): string {
    return `${this.worker} (life ${this.life} of session ${this.session})`;
  }

  get beats(): boolean {
    return this.isAlive && this.#hasStarted && this.#agent.cluster.network.nowMs >= this.#pausedUntilMs;
  }

  start(): void {
    this.#run(() => {
      this.#hasStarted = true;
      this.#tell((runner) => runner.workerReady(this.session, this.worker, this.life, this));
    });
  }

  die(_why: string): void {
    if (!this.isAlive) return;
    this.isAlive = false;
    for (const device of this.devices) this.#agent.cluster.computesNoMore(device, this.name);
    this.#agent.run(() => this.#agent.exited(this.session, this.worker, this.life));
  }

  pause(ms: number): void {
    const { network } = this.#agent.cluster;
    this.#pausedUntilMs = Math.max(this.#pausedUntilMs, network.nowMs + ms);
    network.after(ms, () => {
      if (network.nowMs < this.#pausedUntilMs) return;
      for (const act of this.#waiting.splice(0)) this.#run(act);
    });
  }

  /** The runner's end of the link is gone: a process without its runner ends. */
  linkClosed(): void {
    this.#run(() => this.die("its runner is gone"));
  }

  called(call: Call): void {
    this.#run(() => {
      this.#calls.push(call);
      this.#next();
    });
  }

  answered(call: string, items: readonly string[] | undefined): void {
    this.#run(() => {
      if (this.#call?.id === call) this.#resume(items);
    });
  }

  /** Onloads or offloads, which takes a moment. */
  swap(done: () => void): void {
    const { network } = this.#agent.cluster;
    this.#run(() => network.after(network.between(1, 20), () => this.#run(() => this.#tell(() => done()))));
  }

  #run(act: () => void): void {
    if (!this.isAlive) return;
    if (this.#agent.cluster.network.nowMs < this.#pausedUntilMs) this.#waiting.push(act);
    else act();
  }

  #tell(say: (runner: NonNullable<SimulatedAgent["cluster"]["runner"]>) => void): void {
    const { cluster, node } = this.#agent;
    cluster.network.link(node, "runner", () => {
      const { runner } = cluster;
      if (runner?.isAlive && runner.incarnation === this.session) runner.run(() => say(runner));
    });
  }

  #next(): void {
    if (this.#program !== undefined) return;
    this.#call = this.#calls.shift();
    if (this.#call === undefined) return;
    this.#program = (this.#call.kind === "maker" ? maker : trainer)(this.#call);
    this.#resume(undefined);
  }

  #resume(items: readonly string[] | undefined): void {
    const { value: command, done } = this.#program!.next(items);
    const call = this.#call as Call;
    if (done) {
      this.#program = undefined;
      this.#next();
    } else if (command.op === "work") this.#work();
    else this.#tell((runner) => runner.asked(this, call, command));
  }

  #work(): void {
    const { cluster } = this.#agent;
    for (const device of this.devices) cluster.computes(device, this.name);
    cluster.network.after(cluster.network.between(5, 80), () =>
      this.#run(() => {
        for (const device of this.devices) cluster.computesNoMore(device, this.name);
        this.#resume(undefined);
      }),
    );
  }
}
