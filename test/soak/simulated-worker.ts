/** A worker process: the calls that it was sent, one after the other, and what it asks of the runner meanwhile. */
import type { ReleasableTag, WaitTerms } from "@treadle/contracts";
import type { Answer } from "@treadle/core";
import type { SimulatedAgent } from "./simulated-agent.ts";
import { type Moved, SimulatedMemory, type Swap } from "./simulated-memory.ts";
import { StreamingMaker } from "./streaming-maker.ts";

export type Call = {
  readonly id: string;
  readonly kind: "maker" | "trainer" | "pull";
  readonly step: number;
  /** items a take; all of the stream when absent */
  readonly max: number | undefined;
  /** it takes in rounds with the other ranks of its call */
  readonly inGang: boolean;
  /** repeats one that a process before this one has had */
  readonly isReplay: boolean;
};

export type Request =
  /** `tags`: what of its memory it needs; all when absent */
  | { readonly op: "lock"; readonly tags?: readonly ReleasableTag[] }
  | { readonly op: "release"; readonly token: number }
  /** it returns, with what it has trained */
  | { readonly op: "close"; readonly items: readonly string[] }
  | {
      readonly op: "take";
      readonly channel: "prompts" | "items";
      readonly max: number | undefined;
      /** what it took before stays its own until the call ends */
      readonly holds?: boolean;
      /** what it takes is committed item by item */
      readonly streams?: boolean;
      readonly inGang?: boolean;
      readonly terms?: WaitTerms;
    }
  | {
      readonly op: "commit";
      readonly delivery: number;
      readonly items: readonly string[];
      readonly terms: WaitTerms;
    }
  | { readonly op: "lend"; readonly numAnswered: number }
  | { readonly op: "put"; readonly channel: "items"; readonly items: readonly string[] };
type Command = Request | { readonly op: "work" };
type Program = Generator<Command, void, Answer | undefined>;
const itemsOf = (answer: Answer | undefined): string[] | undefined =>
  answer?.type === "batch" ? answer.items.map(({ payload }) => payload as string) : undefined;
const tokenOf = (answer: Answer | undefined): number => (answer?.type === "token" ? answer.token : -1);

function* maker({ max }: Call): Program {
  for (;;) {
    const prompts = itemsOf(yield { op: "take", channel: "prompts", max });
    if (prompts === undefined) break;
    const token = tokenOf(yield { op: "lock" });
    yield { op: "work" };
    yield { op: "put", channel: "items", items: prompts };
    yield { op: "release", token };
  }
  yield { op: "close", items: [] };
}

/** Holds its devices while it waits, which lends them, and its items until it ends: it is one batch. */
function* trainer({ max, inGang }: Call): Program {
  yield { op: "lock" };
  const trained: string[] = [];
  for (;;) {
    const items = itemsOf(yield { op: "take", channel: "items", max, holds: true, inGang });
    if (items === undefined) break;
    yield { op: "work" };
    trained.push(...items);
  }
  yield { op: "close", items: trained }; // which frees its devices
}

function* pull(): Program {
  yield { op: "lock", tags: ["weights"] };
  yield { op: "work" };
  yield { op: "close", items: [] };
}

const programs = { maker, trainer, pull };

export class SimulatedWorker {
  readonly session: number;
  readonly worker: string;
  readonly life: number;
  readonly devices: readonly string[];
  readonly spawnedMs: number;
  isAlive = true;
  readonly #agent: SimulatedAgent;
  readonly #memory: SimulatedMemory;
  readonly #calls: Call[] = [];
  #program: Program | undefined;
  #stream: StreamingMaker | undefined;
  #call: Call | undefined;
  /** of the present call; what was asked in an earlier one is not waited for any more */
  #attempt = 0;
  /** the call that missed a peer: later ones wait until it has started over, or is given up */
  #missed: string | undefined;
  #pausedUntilMs = 0;
  #waiting: (() => void)[] = [];
  #hasStarted = false;

  constructor(agent: SimulatedAgent, session: number, worker: string, life: number, devices: readonly string[]) {
    this.#agent = agent;
    this.#memory = new SimulatedMemory(agent.cluster.scenario);
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
      if (call.id === this.#missed) {
        this.#missed = undefined;
        this.#calls.unshift(call);
      } else this.#calls.push(call);
      this.#next();
    });
  }

  gaveUp(call: string): void {
    this.#run(() => {
      if (call !== this.#missed) return;
      this.#missed = undefined;
      this.#next();
    });
  }

  answered(call: string, attempt: number, tag: number, answer: Answer): void {
    this.#run(() => {
      if (this.#call?.id !== call || this.#attempt !== attempt) return;
      if (this.#stream) this.#stream.answered(tag, answer);
      else this.#resume(answer);
    });
  }

  /** Its call may be missing something of the dead one: it ends at once, and starts over. */
  peerDied(dead: string): void {
    const { cluster } = this.#agent;
    this.#run(() => {
      const call = this.#call;
      if (!call || call.isReplay || !this.#isBusy) return;
      if (cluster.network.random() >= cluster.scenario.missesPeers) return;
      for (const device of this.devices) cluster.computesNoMore(device, this.name);
      this.#program = undefined;
      this.#stream = undefined;
      this.#attempt++;
      this.#missed = call.id;
      this.#tell((runner) => runner.missed(this, call, dead));
    });
  }

  resize(done: () => void): void {
    this.#run(() => this.#tell(() => done()));
  }

  /** Onloads or offloads, which takes a moment. */
  swap(effect: Swap, done: (moved: Moved) => void): void {
    const { network } = this.#agent.cluster;
    const over = () => {
      const moved = this.#memory.move(effect);
      this.#tell(() => done(moved));
    };
    this.#run(() => network.after(network.between(1, 20), () => this.#run(over)));
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

  get #isBusy(): boolean {
    return this.#program !== undefined || this.#stream !== undefined;
  }

  #next(): void {
    if (this.#isBusy || this.#missed !== undefined) return;
    this.#call = this.#calls.shift();
    if (this.#call === undefined) return;
    this.#attempt++;
    if (this.#call.kind === "maker" && this.#agent.cluster.scenario.makersStream) {
      this.#begin(this.#call);
      return;
    }
    this.#program = programs[this.#call.kind](this.#call);
    this.#resume(undefined);
  }

  #begin(call: Call): void {
    const attempt = this.#attempt;
    const { cluster } = this.#agent;
    const isCurrent = () => this.#call === call && this.#attempt === attempt;
    this.#stream = new StreamingMaker({
      ask: (tag, request) => {
        this.#tell((runner) => runner.asked(this, call, attempt, request, tag));
        if (request.op !== "close") return;
        this.#stream = undefined;
        this.#next();
      },
      after: (act, ms = cluster.network.between(5, 80)) =>
        cluster.network.after(ms, () =>
          this.#run(() => {
            if (isCurrent() && this.#stream) act();
          }),
        ),
      computes: () => {
        for (const device of this.devices) cluster.computes(device, this.name);
      },
      computesNoMore: () => {
        for (const device of this.devices) cluster.computesNoMore(device, this.name);
      },
    });
  }

  #resume(answer: Answer | undefined): void {
    const { value: command, done } = this.#program!.next(answer);
    const call = this.#call as Call;
    const attempt = this.#attempt;
    if (done) {
      this.#program = undefined;
      this.#next();
    } else if (command.op === "work") this.#work();
    else {
      this.#tell((runner) => runner.asked(this, call, attempt, command));
      if (command.op === "close") this.#resume(undefined); // nobody answers a reply
    }
  }

  #work(): void {
    const { cluster } = this.#agent;
    const program = this.#program;
    for (const device of this.devices) cluster.computes(device, this.name);
    cluster.network.after(cluster.network.between(5, 80), () =>
      this.#run(() => {
        if (this.#program !== program) return; // it missed a peer meanwhile
        for (const device of this.devices) cluster.computesNoMore(device, this.name);
        this.#resume(undefined);
      }),
    );
  }
}
