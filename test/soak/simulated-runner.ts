/**
 * A runner: it shows `RunnerState` what happens on a network that loses, doubles and delays, and does what that wants.
 * It decides nothing but which nodes it may use (ND1, ND2); it dies with everything but its journal.
 */
import {
  type DeviceSpec,
  type MembershipChange,
  type RecordingHeader,
  recordingFormat,
  TreadleError,
} from "@treadle/contracts";
import {
  type Answer,
  type ChannelEnd,
  digestOf,
  inTurn,
  type LeaseEffect,
  type LeaseInput,
  type RunnerEffect,
  type RunnerInput,
  RunnerState,
  recordInput,
} from "@treadle/core";
import type { MembershipState } from "../../packages/transport/src/control-plane/membership-state.ts";
import { BrokenInvariant, Judge } from "./judge.ts";
import { beatMs, expectNothingHeld, itemOf, type Layout, type SimulatedCluster, tickMs } from "./simulated-cluster.ts";
import { type Moved, memoryOf } from "./simulated-memory.ts";
import type { Call, Request, SimulatedWorker } from "./simulated-worker.ts";

type Waiting = {
  readonly process: SimulatedWorker;
  readonly call: string;
  readonly attempt: number;
  readonly tag: number;
};
type Launch = Extract<RunnerEffect, { type: "launch" }>;

const rejoinMs = 3000;
const commandRetryMs = 700;

export class SimulatedRunner {
  readonly incarnation: number;
  readonly #cluster: SimulatedCluster;
  readonly #state: RunnerState;
  readonly #judge: Judge;
  readonly #header: RecordingHeader;
  isAlive = true;
  clockOffsetMs = 0;
  #pausedUntilMs = 0;
  #waiting: (() => void)[] = [];
  readonly #membership: MembershipState;
  readonly #present = new Map<string, number>();
  readonly #usable = new Set<string>();
  readonly #launched = new Map<string, Launch>();
  readonly #processes = new Map<string, SimulatedWorker>();
  readonly #requests = new Map<number, Waiting>();
  /** by call: what it was made with, and what it returned */
  readonly #calls = new Map<string, Call>();
  readonly #trained = new Map<string, readonly string[]>();
  readonly #lease: ((effect: LeaseEffect) => void) | undefined;
  #layout: Layout;
  #isAdopting = false;
  #wasConnected = true;
  #begun: number;
  #lastRequest = 0;
  #lastToken = 0;
  #sequence = 0;

  constructor(cluster: SimulatedCluster, incarnation: number) {
    this.#cluster = cluster;
    this.incarnation = incarnation;
    const { scenario, network, journal } = cluster;
    this.#membership = cluster.newMembership(this.nowMs);
    const supervision = { ...cluster.limits, lockTimeoutMs: 1e9, startTimeoutMs: 60_000 };
    const options = {
      supervision,
      rejoinMs,
      placeWaitMs: 60_000,
      maxStaleness: scenario.overlapsSteps ? 1 : 0,
      ...(cluster.sharing ? { isLeased: true } : {}),
    };
    this.#state = new RunnerState(options, this.nowMs);
    const startedAt = new Date(0).toISOString();
    this.#header = { format: recordingFormat, runId: `run-${incarnation}`, startedAt, startMs: this.nowMs, options };
    this.#begun = journal.length;
    this.#lease = cluster.sharing?.join(this);
    const { capacity, makersPull } = scenario;
    const replayed = makersPull ? "pull" : undefined;
    this.#judge = new Judge({ capacity, maxStaleness: options.maxStaleness, replayed });
    for (const name of ["prompts", "items"])
      this.#feed({ type: "define-channel", name, capacity, pick: scenario.pick });
    this.#feedNodes();
    this.#layout = this.#layoutOf(this.#begun + 1);
    this.#layOut();
    for (const { node, incarnation: of, isAlive } of cluster.agents ?? []) if (isAlive) this.entered(node, of);
    const every = (ms: number, act: () => void) => {
      const again = () => {
        if (!this.isAlive) return;
        this.run(act);
        network.after(ms, again);
      };
      network.after(network.between(0, ms), again);
    };
    every(beatMs, () => this.#beat(false));
    every(tickMs, () => this.#tick());
    this.#goOn(1);
  }

  get nowMs(): number {
    return this.#cluster.network.nowMs + this.clockOffsetMs;
  }

  die(): void {
    if (!this.isAlive) return;
    this.isAlive = false;
    const { network, agents, sharing } = this.#cluster;
    sharing?.left(this);
    for (const { node, processes } of agents)
      for (const process of processes)
        if (process.session === this.incarnation) network.link("runner", node, () => process.linkClosed());
  }

  pause(ms: number): void {
    const { network } = this.#cluster;
    this.#pausedUntilMs = Math.max(this.#pausedUntilMs, network.nowMs + ms);
    network.after(ms, () => {
      if (network.nowMs < this.#pausedUntilMs) return;
      for (const act of this.#waiting.splice(0)) this.run(act);
    });
  }

  run(act: () => void): void {
    if (!this.isAlive) return;
    if (this.#cluster.network.nowMs < this.#pausedUntilMs) this.#waiting.push(act);
    else act();
  }

  /** Of the pool, about leases. */
  leaseSaid = (input: LeaseInput): void => this.#feed(input);

  entered(node: string, incarnation: number): void {
    this.run(() =>
      this.#changed(this.#membership.entry({ kind: "node", name: node, incarnation, body: {} }, 0, this.nowMs)),
    );
  }

  heardAgent(node: string, incarnation: number): void {
    this.run(() => this.#changed(this.#membership.beat("node", node, incarnation, this.nowMs)));
  }

  heardWorker(session: number, worker: string, life: number): void {
    if (session !== this.incarnation) return;
    this.run(() => this.#feed({ type: "beat", worker, incarnation: life, busyMs: 0 }));
  }

  workerReady(session: number, worker: string, life: number, process: SimulatedWorker): void {
    if (session !== this.incarnation || this.#launched.get(worker)?.incarnation !== life) return;
    this.#processes.set(worker, process);
    this.#feed({ type: "connected", worker, incarnation: life });
    this.#feed({
      type: "ready",
      worker,
      incarnation: life,
      ...memoryOf(this.#cluster.scenario),
      loads: this.#cluster.scenario.loads,
    });
  }

  /** A node says that a process has ended; it says so until it is heard. */
  workerExited(node: string, session: number, worker: string, life: number): void {
    this.run(() => {
      this.#cluster.network.bus("runner", node, () => this.#agent(node).confirmed(session, worker, life));
      if (session === this.incarnation) this.#exited(worker, life, undefined);
    });
  }

  /** A call has missed a peer that died, and may start over. */
  missed(process: SimulatedWorker, { id }: Call, dead: string): void {
    if (this.#processes.get(process.worker) !== process) return;
    const from = { worker: process.worker, incarnation: process.life };
    const error = new TreadleError("worker.died", `'${dead}' is gone`, { origin: { worker: dead } });
    this.#feed({ type: "threw", ...from, call: id, error });
  }

  /** What a worker asks in the name of its call. Its link was cut when it was discarded. */
  asked(process: SimulatedWorker, { id, isReplay }: Call, attempt: number, request: Request, tag = 0): void {
    const from = { worker: process.worker, incarnation: process.life };
    if (this.#processes.get(process.worker) !== process) return;
    if (request.op === "close") {
      this.#trained.set(id, request.items);
      this.#feed({ type: isReplay ? "replayed" : "returned", ...from, call: id });
      return;
    }
    if (request.op === "lend") {
      this.#feed({ type: "lend", from, call: id, numAnswered: request.numAnswered });
      return;
    }
    const asked = ++this.#lastRequest;
    this.#requests.set(asked, { process, call: id, attempt, tag });
    const common = { request: asked, from, call: id };
    if (request.op === "lock") this.#feed({ type: "acquire", ...common, tags: request.tags });
    else if (request.op === "release") this.#feed({ type: "release", ...common, token: request.token });
    else if (request.op === "put") {
      this.#feed({ type: "put", ...common, channel: request.channel, items: request.items.map(itemOf) });
    } else if (request.op === "commit") {
      const { delivery, terms } = request;
      const outputs = { channel: "items", items: request.items.map(itemOf) };
      this.#feed({ type: "commit", ...common, channel: "prompts", deliveries: [delivery], outputs, ...terms });
    } else {
      const { channel, max, holds = false, streams = false, inGang = false, terms } = request;
      const acknowledge = !holds && !streams;
      const most = { maxItems: max, minItems: 1 };
      this.#feed({ type: "take", ...common, channel, acknowledge, streams, inGang, ...terms, ...most });
    }
  }

  /** Who waits for what, for the report of a hang. */
  report(): string {
    const ranks = this.#state.ranks.map(({ worker, phase, incarnation, place }) => {
      return `${worker} is ${phase}, life ${incarnation} on ${place.node}`;
    });
    return [`usable ${[...this.#usable].join(" ")}`, ...ranks, this.#state.standstill().text].join("\n");
  }

  readonly #feed = inTurn((input: RunnerInput) => {
    for (const effect of this.#decide(input)) this.#act(effect);
  });

  #decide(input: RunnerInput): readonly RunnerEffect[] {
    const { nowMs } = this;
    const effects = this.#state.handle(input, nowMs);
    this.#judge.turn(input, effects, this.#state);
    this.#cluster.recorder?.(this.#header, [nowMs, digestOf(effects), recordInput(input)]);
    return effects;
  }

  #act(effect: RunnerEffect): void {
    const { network } = this.#cluster;
    switch (effect.type) {
      case "answer":
        this.#answer(effect.request, effect.answer);
        break;
      case "reject": {
        const { request, error } = effect;
        this.#requests.delete(request);
        const { code, message } = error as { code?: string; message: string };
        // What waited when its call started over is called off; a stale token is the mistake of a process that is gone.
        if (code !== "call.cancelled") throw new BrokenInvariant(`RS5: request ${request} was rejected: ${message}`);
        break;
      }
      case "launch":
        this.#launch(effect);
        break;
      case "stop-process":
      case "end-process":
        this.#endProcess(effect.worker, effect.incarnation);
        break;
      case "discard": {
        const process = this.#processes.get(effect.worker);
        this.#processes.delete(effect.worker);
        const node = this.#launched.get(effect.worker)?.place.node;
        if (process && node) network.link("runner", node, () => process.linkClosed());
        this.#endProcess(effect.worker, effect.incarnation);
        break;
      }
      case "send": {
        const call = this.#calls.get(effect.call) as Call;
        this.#toProcess(effect.worker, (process) => process.called(call));
        break;
      }
      case "replay": {
        const call: Call = { id: effect.call, kind: "pull", step: 0, max: undefined, isReplay: true, inGang: false };
        this.#toProcess(effect.worker, (process) => process.called(call));
        break;
      }
      case "give-up":
        this.#toProcess(effect.worker, (process) => process.gaveUp(effect.call));
        break;
      case "peer-died":
        this.#toProcess(effect.worker, (process) => process.peerDied(effect.dead));
        break;
      case "resize": {
        const { worker, incarnation } = effect;
        const done = () => this.#feed({ type: "resized", worker, incarnation });
        if (this.#processes.has(worker)) this.#toProcess(worker, (process) => process.resize(done));
        else done();
        break;
      }
      case "ask-lease":
      case "release-lease":
      case "use-lease":
      case "share-lease":
        this.#lease?.(effect);
        break;
      case "adopted":
        this.#isAdopting = false;
        this.#goOn(0);
        break;
      case "onload":
      case "offload": {
        const { worker, incarnation } = effect;
        const done = (moved: Moved) => this.#feed({ ...moved, worker, incarnation });
        this.#toProcess(worker, (process) => process.swap(effect, done));
        break;
      }
      case "settle":
        this.#feed({ type: "end-work", step: (this.#calls.get(effect.call) as Call).step });
        break;
      case "settle-failed":
        throw new BrokenInvariant(`RS5: call '${effect.call}' failed: ${effect.error}`);
      case "commit":
        this.#commit(effect.step);
        break;
      case "wake":
        network.after(Math.max(1, effect.atMs - this.nowMs), () => this.run(() => this.#feed({ type: "tick" })));
        break;
      case "failed":
        throw new BrokenInvariant(`S2, S3: the run gave up: ${effect.error.message}\n${this.report()}`);
      default:
        break; // what it says of itself
    }
  }

  #answer(request: number, answer: Answer): void {
    const waiting = this.#requests.get(request);
    if (!waiting) return; // the runner's own put
    this.#requests.delete(request);
    if (answer.type === "token") {
      if (answer.token <= this.#lastToken) throw new BrokenInvariant("L3: tokens rise");
      this.#lastToken = answer.token;
    }
    const { process, call, attempt, tag } = waiting;
    if (this.#processes.get(process.worker) === process)
      this.#toProcess(process.worker, (each) => each.answered(call, attempt, tag, answer));
  }

  #toProcess(worker: string, say: (process: SimulatedWorker) => void): void {
    const process = this.#processes.get(worker);
    const node = this.#launched.get(worker)?.place.node;
    if (process && node) this.#cluster.network.link("runner", node, () => say(process));
  }

  #agent(node: string) {
    return this.#cluster.agents.find((agent) => agent.node === node)!;
  }

  get #nodes(): string[] {
    return Array.from({ length: this.#cluster.scenario.numNodes }, (_, i) => `node${i}`);
  }

  #feedNodes(): void {
    const places = this.#nodes.flatMap((node) =>
      [0, 1, 2, 3, 4].map(
        (index): DeviceSpec => ({ id: deviceOf(node, index), kind: "cpu", node, index, memoryBytes: 100 }),
      ),
    );
    this.#feed({ type: "nodes", present: [...this.#usable].sort(), places });
  }

  #layoutOf(step: number): Layout {
    const { layouts } = this.#cluster.scenario;
    return layouts[Math.min(step, layouts.length) - 1] as Layout;
  }

  #layOut(): void {
    const { trainersAreGroup, makersPull, resizes } = this.#cluster.scenario;
    const traits = { resizes, replays: makersPull ? ["pull"] : [] };
    this.#feed({ type: "add-component", component: "maker", restart: "rank", ...traits });
    const restart = trainersAreGroup ? "group" : "rank";
    this.#feed({ type: "add-component", component: "trainer", restart, resizes, replays: [] });
    this.#feed({ type: "lay-out", components: this.#components(this.#layout) });
  }

  #components({ numMakers, numTrainers, shift }: Layout) {
    const nodes = this.#nodes;
    const ranks = (size: number, first: number, device: number) =>
      Array.from({ length: size }, (_, i) => {
        const node = nodes[(i + first) % nodes.length] as string;
        return { node, devices: [deviceOf(node, this.#cluster.scenario.sharesDevices ? i : (device + i) % 5)] };
      });
    return { maker: { ranks: ranks(numMakers, shift, 0) }, trainer: { ranks: ranks(numTrainers, shift + 1, 2) } };
  }

  #beat(goodbye: boolean): void {
    for (const agent of this.#cluster.agents)
      this.#cluster.network.bus("runner", agent.node, () => agent.heardRunner(this.incarnation, goodbye));
  }

  #tick(): void {
    const { nowMs } = this;
    // One connection to the servers: it is gone when nothing is reached through it.
    const isConnected = !this.#cluster.network.isBusAway;
    if (isConnected !== this.#wasConnected) this.#membership.connection(isConnected, nowMs);
    this.#wasConnected = isConnected;
    // While it is cut off a runner takes its workers for alive.
    if (!isConnected)
      for (const { worker, incarnation } of this.#state.ranks)
        this.#feed({ type: "beat", worker, incarnation, busyMs: 0 });
    this.#changed(this.#membership.tick(nowMs));
    this.#feed({ type: "tick" });
  }

  #changed(changes: readonly MembershipChange[]): void {
    for (const { type, member } of changes) {
      const { name, incarnation } = member;
      if (type === "joined") {
        if (this.#present.has(name)) throw new BrokenInvariant(`M2: '${name}' joined twice`);
        this.#present.set(name, incarnation);
        this.#admit(name, incarnation);
      }
      if (type === "left") {
        if (this.#present.get(name) !== incarnation) throw new BrokenInvariant(`M2: '${name}' left and was not there`);
        this.#present.delete(name);
        this.#usable.delete(name);
        this.#feedNodes();
        for (const { worker, place, incarnation: life } of this.#state.ranks)
          if (place.node === name) this.#exited(worker, life, incarnation); // ND1
      }
    }
  }

  /** ND2: nothing of this run is left on a node before it is used. */
  #admit(node: string, incarnation: number): void {
    const isThere = () => this.isAlive && this.#present.get(node) === incarnation;
    const done = () => {
      this.#usable.add(node);
      this.#feedNodes();
    };
    this.#ask(node, incarnation, isThere, (agent) => agent.release(this.incarnation), done);
  }

  /** A command of the control plane, asked again until it is answered. */
  #ask(
    node: string,
    incarnation: number,
    isWanted: () => boolean,
    command: (agent: SimulatedCluster["agents"][number]) => void,
    done: () => void,
  ): void {
    const { network } = this.#cluster;
    const agent = this.#agent(node);
    let isAnswered = false;
    const ask = () => {
      if (isAnswered || !isWanted()) return;
      network.bus("runner", node, () =>
        agent.run(() => {
          if (agent.incarnation !== incarnation) return; // CP2
          command(agent);
          network.bus(node, "runner", () =>
            this.run(() => {
              if (isAnswered || !isWanted()) return;
              isAnswered = true;
              done();
            }),
          );
        }),
      );
      network.after(commandRetryMs, () => this.run(ask));
    };
    ask();
  }

  #launch(launch: Launch): void {
    const { worker, incarnation: life, place } = launch;
    this.#launched.set(worker, launch);
    const incarnation = this.#present.get(place.node);
    // A node that went away in the same turn: its loss is on the way.
    if (incarnation === undefined)
      throw new BrokenInvariant(`RT1: '${worker}' starts on '${place.node}', which is gone`);
    const order = { session: this.incarnation, worker, life, devices: place.devices };
    const isWanted = () => this.#launched.get(worker) === launch && this.#state.rank(worker)?.incarnation === life;
    this.#ask(
      place.node,
      incarnation,
      isWanted,
      (agent) => agent.spawn(order),
      () => this.#feed({ type: "launched", worker, incarnation: life }),
    );
  }

  #endProcess(worker: string, life: number): void {
    const launch = this.#launched.get(worker);
    if (launch?.incarnation !== life) return;
    const { node } = launch.place;
    const incarnation = this.#present.get(node);
    if (incarnation === undefined) return;
    const isWanted = () => this.isAlive && this.#present.get(node) === incarnation;
    this.#ask(
      node,
      incarnation,
      isWanted,
      (agent) => agent.end(this.incarnation, worker, life),
      () => {},
    );
  }

  /** A process of ours is over, or its node is. */
  #exited(worker: string, life: number, lostWith: number | undefined): void {
    const launch = this.#launched.get(worker);
    if (launch?.incarnation !== life || this.#state.rank(worker)?.phase === "placing") return;
    const { node } = launch.place;
    const failure = { code: "node.lost", message: "lost", details: { node, incarnation: lostWith } };
    this.#feed({
      type: "exited",
      worker,
      incarnation: life,
      code: null,
      signal: "SIGKILL",
      failure: lostWith === undefined ? undefined : failure,
      logTail: [],
    });
  }

  #goOn(afterMs: number): void {
    this.#cluster.network.after(afterMs, () => this.run(() => this.#beginSteps()));
  }

  /** A plan changes while no call is open (RS3). */
  #beginSteps(): void {
    const { numSteps } = this.#cluster.scenario;
    while (!this.#isAdopting && this.#begun < numSteps && this.#state.blockerOf(this.#begun + 1) === undefined) {
      const layout = this.#layoutOf(this.#begun + 1);
      if (layout === this.#layout) {
        this.#begin(++this.#begun);
        continue;
      }
      if (this.#state.hasOpenCalls) return; // the step that they are of has not been committed
      this.#isAdopting = true;
      this.#layout = layout;
      this.#feed({ type: "adopt", components: this.#components(layout) });
    }
  }

  #begin(step: number): void {
    const stream = `step-${step}`;
    const source = (channel: string): ChannelEnd => ({ channel, role: "source", stream });
    const sink = (channel: string): ChannelEnd => ({ channel, role: "sink", stream });
    this.#feed({ type: "begin-step", step });
    const own = `runner:prompts:${step}`;
    this.#feed({ type: "open", call: own, end: sink("prompts") });
    const items = this.#cluster.promptsOf(step).map(itemOf);
    this.#feed({ type: "put", request: ++this.#lastRequest, call: own, channel: "prompts", items });
    this.#feed({ type: "close", call: own, outcome: { ok: true } });
    const { makersPull, trainersAreGroup, takesInRounds } = this.#cluster.scenario;
    const inRounds = trainersAreGroup && takesInRounds;
    const kinds: readonly { kind: Call["kind"]; ends: readonly ChannelEnd[] }[] = [
      ...(makersPull ? [{ kind: "pull" as const, ends: [] }] : []),
      { kind: "maker", ends: [source("prompts"), sink("items")] },
      { kind: "trainer", ends: [source("items")] },
    ];
    for (const { kind, ends } of kinds) {
      // Numbers that replays have taken meanwhile are left out.
      const sequence = Math.max(this.#sequence, this.#state.lastSequence) + 1;
      this.#sequence = sequence;
      const component = kind === "pull" ? "maker" : kind;
      const ranks = this.#state.ranksOf(component).map(({ index }) => index);
      for (const index of ranks) {
        const id = `${sequence}/${index}`;
        // One in four wants all of the stream, and gets its share of it.
        const size = (step + index + sequence) % 4;
        this.#calls.set(id, {
          id,
          kind,
          step,
          max: size === 0 ? undefined : size,
          isReplay: false,
          inGang: kind === "trainer" && inRounds,
        });
        this.#feed({ type: "begin-work", step });
      }
      this.#feed({ type: "call", sequence, component, method: kind, ranks, ends, step });
    }
    this.#feed({ type: "end-body", step });
  }

  /** J1: with what was trained; then there is room for a further step. */
  #commit(step: number): void {
    const { scenario } = this.#cluster;
    const items = [...this.#calls.values()].flatMap((call) =>
      call.step === step && call.kind === "trainer" ? (this.#trained.get(call.id) ?? []) : [],
    );
    this.#cluster.commit({ step, items });
    for (const [id, call] of this.#calls) {
      if (call.step !== step) continue;
      this.#calls.delete(id);
      this.#trained.delete(id);
    }
    this.#feed({ type: "committed", step });
    if (step < scenario.numSteps) {
      this.#goOn(scenario.restMs);
      return;
    }
    expectNothingHeld(this.#state);
    this.#cluster.runnerHasFinished = true;
    for (let i = 0; i < 40; i++) this.#beat(true);
    this.die();
  }
}

const deviceOf = (node: string, index: number): string => `${node}/cpu:${index}`;
