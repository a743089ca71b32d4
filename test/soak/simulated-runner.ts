/**
 * A runner: it places workers on the nodes that its membership machine shows, feeds steps, serves what workers ask from
 * the channel and lock machines, and does what the supervision machine decides. Dies with everything but its journal.
 */
import type { MembershipChange } from "@treadle/contracts";
import { type ChannelEffect, ChannelState, DeviceLockState, type LockEffect } from "@treadle/runtime/state-machines";
import { SupervisorState } from "../../packages/runtime/src/supervisor/supervisor-state.ts";
import type { MembershipState } from "../../packages/transport/src/control-plane/membership-state.ts";
import { BrokenInvariant, beatMs, type SimulatedCluster, tickMs } from "./simulated-cluster.ts";
import type { Call, Request, SimulatedWorker } from "./simulated-worker.ts";

type Rank = {
  readonly worker: string;
  readonly kind: Call["kind"];
  readonly index: number;
  life: number;
  node: string | undefined;
  process: SimulatedWorker | undefined;
  isEnding: boolean;
};
type OpenCall = Call & {
  readonly rank: Rank;
  readonly sequence: number;
  token: number | undefined;
  lent: boolean;
  answer: readonly string[] | undefined;
  wants: Request["op"] | undefined;
};
type Step = { readonly step: number; readonly calls: Set<string>; readonly trained: string[] };

const limits = { maxRestarts: 10_000, restartWindowMs: 1000, heartbeatTimeoutMs: 4000, stallMs: 30_000 };
const commandRetryMs = 700;

export class SimulatedRunner {
  readonly incarnation: number;
  readonly #cluster: SimulatedCluster;
  isAlive = true;
  clockOffsetMs = 0;
  #pausedUntilMs = 0;
  #waiting: (() => void)[] = [];
  readonly #membership: MembershipState;
  readonly #present = new Map<string, number>();
  readonly #usable = new Set<string>();
  readonly #supervisor: SupervisorState;
  readonly #lock: DeviceLockState;
  readonly #prompts: ChannelState;
  readonly #items: ChannelState;
  readonly #ranks: Rank[];
  readonly #calls = new Map<string, OpenCall>();
  readonly #steps = new Map<number, Step>();
  #wasConnected = new Map<string, boolean>();
  #begun: number;
  #lastRequest = 0;
  #lastToken = 0;
  #sequence = 0;

  constructor(cluster: SimulatedCluster, incarnation: number) {
    this.#cluster = cluster;
    this.incarnation = incarnation;
    const { scenario, network } = cluster;
    this.#membership = cluster.newMembership(this.nowMs);
    this.#supervisor = new SupervisorState(limits, this.nowMs);
    const devices =
      cluster.agents?.map(({ node }) => node) ?? Array.from({ length: scenario.numNodes }, (_, i) => `node${i}`);
    this.#lock = new DeviceLockState({
      devices: devices.flatMap((node) =>
        ["d0", "d1", "d2", "d3"].map((d) => ({ device: `${node}/${d}`, capacityBytes: 100 })),
      ),
    });
    const capacity = { items: scenario.capacity };
    this.#prompts = new ChannelState({ name: "prompts", capacity });
    this.#items = new ChannelState({ name: "items", capacity });
    const rank = (kind: Call["kind"], index: number): Rank => ({
      worker: `${kind}/${index}`,
      kind,
      index,
      life: 0,
      node: undefined,
      process: undefined,
      isEnding: false,
    });
    this.#ranks = [
      ...Array.from({ length: scenario.numMakers }, (_, i) => rank("maker", i)),
      ...Array.from({ length: scenario.numTrainers }, (_, i) => rank("trainer", i)),
    ];
    this.#begun = cluster.journal.length;
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
    network.after(1, () => this.run(() => this.#beginSteps()));
  }

  get nowMs(): number {
    return this.#cluster.network.nowMs + this.clockOffsetMs;
  }

  die(): void {
    if (!this.isAlive) return;
    this.isAlive = false;
    const { network, agents } = this.#cluster;
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

  entered(node: string, incarnation: number): void {
    this.run(() =>
      this.#changed(this.#membership.entry({ kind: "node", name: node, incarnation, body: {} }, this.nowMs)),
    );
  }

  heardAgent(node: string, incarnation: number): void {
    this.run(() => this.#changed(this.#membership.beat("node", node, incarnation, this.nowMs)));
  }

  heardWorker(session: number, worker: string, life: number): void {
    this.run(() => {
      const rank = this.#rankOf(session, worker, life);
      if (rank) this.#supervisor.heartbeat(worker, 0, this.nowMs);
    });
  }

  workerReady(session: number, worker: string, life: number, process: SimulatedWorker): void {
    const rank = this.#rankOf(session, worker, life);
    if (rank === undefined || rank.process !== undefined || rank.isEnding) return;
    rank.process = process;
    this.#supervisor.watch(worker, this.nowMs);
    this.#lock.addWorker({
      worker,
      devices: process.devices,
      residentBytes: this.#cluster.scenario.sharesDevices ? 60 : 40,
    });
    for (const call of [...this.#calls.values()].sort((a, b) => a.sequence - b.sequence)) {
      if (call.rank !== rank) continue;
      for (const channel of this.#channelsOf(call)) channel.retry({ call: call.id, worker });
      this.#send(call);
    }
  }

  /** A node says that a process has ended; it says so until it is heard. */
  workerExited(node: string, session: number, worker: string, life: number): void {
    this.run(() => {
      this.#cluster.network.bus("runner", node, () => this.#agent(node).confirmed(session, worker, life));
      const rank = this.#rankOf(session, worker, life);
      if (rank) this.#ended(rank, false);
    });
  }

  asked(process: SimulatedWorker, { id }: Call, request: Request): void {
    const call = this.#calls.get(id);
    // Its link was closed when it was declared dead.
    if (call === undefined || call.rank.process !== process) return;
    this.#supervisor.progress(this.nowMs);
    const { nowMs } = this;
    switch (request.op) {
      case "lock":
        this.#locked(this.#lock.acquire({ request: id, call: id, nowMs }));
        break;
      case "release": {
        const { token } = call;
        call.token = undefined;
        if (token !== undefined) this.#locked(this.#lock.release({ token }));
        this.#answer(call, undefined);
        break;
      }
      case "take": {
        if (!request.keeps) this.#settle(call);
        const take = ++this.#lastRequest;
        const channel = request.channel === "prompts" ? this.#prompts : this.#items;
        const effects = channel.take({ call: id, take, max: { items: request.max }, nowMs });
        this.#blockUnless(effects, (each) => "take" in each && each.take === take, call, request.channel, "take");
        break;
      }
      case "put": {
        const put = ++this.#lastRequest;
        const items = request.items.map((payload) => ({ payload, sizeBytes: 1 }));
        const effects = this.#items.put({ call: id, put, items, staged: true, nowMs });
        this.#locked(this.#lock.enqueued({ call: id }));
        this.#blockUnless(
          effects,
          (each) => each.type === "put-accepted" && each.put === put,
          call,
          request.channel,
          "put",
        );
        break;
      }
      case "close": {
        this.#settle(call);
        this.#calls.delete(id);
        const effects = this.#channelsOf(call).flatMap((channel) => channel.close({ call: id, outcome: { ok: true } }));
        this.#apply(effects);
        this.#locked(this.#lock.closeCall({ call: id }));
        this.#answer(call, undefined);
        this.#steps.get(call.step)?.calls.delete(id);
        this.#commit();
        break;
      }
    }
  }

  /** Who waits for what, for the report of a hang. */
  report(): string {
    const calls = [...this.#calls.values()].map(
      ({ id, rank, wants, lent, token }) =>
        `${id}: wants ${wants}, ${token === undefined ? (lent ? "lent" : "no token") : "holds"}, life ${rank.life} on ${rank.node}${rank.process ? "" : ", not ready"}`,
    );
    return [`usable ${[...this.#usable].join(" ")}`, ...calls, JSON.stringify(this.#lock.edges())].join("\n");
  }

  #agent(node: string) {
    return this.#cluster.agents.find((agent) => agent.node === node)!;
  }

  #rankOf(session: number, worker: string, life: number): Rank | undefined {
    const rank = this.#ranks.find((each) => each.worker === worker);
    return session === this.incarnation && rank?.life === life && rank.node !== undefined ? rank : undefined;
  }

  #channelsOf(call: Call): ChannelState[] {
    return call.kind === "maker" ? [this.#prompts, this.#items] : [this.#items];
  }

  #beat(goodbye: boolean): void {
    for (const agent of this.#cluster.agents)
      this.#cluster.network.bus("runner", agent.node, () => agent.heardRunner(this.incarnation, goodbye));
  }

  #tick(): void {
    const { nowMs } = this;
    const { network, agents } = this.#cluster;
    // One connection to the servers: it is gone when nothing is reached through it.
    const isConnected = !network.isBusAway;
    if (isConnected !== (this.#wasConnected.get("bus") ?? true)) this.#membership.connection(isConnected, nowMs);
    this.#wasConnected.set("bus", isConnected);
    // While it is cut off a runner takes its workers for alive.
    if (!isConnected)
      for (const { worker, process } of this.#ranks) if (process) this.#supervisor.heartbeat(worker, 0, nowMs);
    this.#changed(this.#membership.tick(nowMs));
    for (const decision of this.#supervisor.tick(nowMs)) {
      if (decision.type === "fail-stalled") throw new BrokenInvariant(`S3: nothing moves\n${this.report()}`);
      if (decision.type !== "end-worker") continue;
      const rank = this.#ranks.find(({ worker }) => worker === decision.worker);
      if (rank?.node !== undefined) this.#end(rank);
    }
    this.#locked(this.#lock.tick({ nowMs }));
    for (const rank of this.#ranks) if (rank.node === undefined) this.#place(rank);
    if (agents.length === 0) throw new Error("a cluster has nodes");
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
        for (const rank of this.#ranks) if (rank.node === name) this.#ended(rank, true); // B1
      }
    }
  }

  /** B2: nothing of this run is left on a node before it is used. */
  #admit(node: string, incarnation: number): void {
    const isThere = () => this.isAlive && this.#present.get(node) === incarnation;
    this.#ask(
      node,
      incarnation,
      isThere,
      (agent) => agent.release(this.incarnation),
      () => this.#usable.add(node),
    );
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
          if (agent.incarnation !== incarnation) return; // P2
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

  #place(rank: Rank): void {
    const nodes = [...this.#usable].sort();
    if (nodes.length === 0) return;
    const node = nodes[(rank.index + (rank.kind === "maker" ? 0 : 1)) % nodes.length] as string;
    const incarnation = this.#present.get(node) as number;
    rank.life++;
    rank.node = node;
    rank.isEnding = false;
    const { sharesDevices } = this.#cluster.scenario;
    const device = sharesDevices ? rank.index : rank.kind === "maker" ? rank.index : 2 + rank.index;
    const order = { session: this.incarnation, worker: rank.worker, life: rank.life, devices: [`${node}/d${device}`] };
    this.#supervisor.starting(rank.worker);
    const { life } = rank;
    const isWanted = () => rank.life === life && rank.node === node && !rank.isEnding;
    this.#ask(
      node,
      incarnation,
      isWanted,
      (agent) => agent.spawn(order),
      () => this.#supervisor.watch(rank.worker, this.nowMs),
    );
  }

  #end(rank: Rank): void {
    if (rank.isEnding) return;
    rank.isEnding = true;
    const { node, life, worker } = rank;
    const incarnation = this.#present.get(node as string);
    if (incarnation === undefined) return;
    const isWanted = () => rank.life === life && rank.node === node;
    this.#ask(
      node as string,
      incarnation,
      isWanted,
      (agent) => agent.end(this.incarnation, worker, life),
      () => {},
    );
  }

  /** A process of ours is over, or its node is. */
  #ended(rank: Rank, withNode: boolean): void {
    const { worker, node, life, process } = rank;
    if (node === undefined) return;
    const failure = withNode ? { code: "node.lost", message: "lost", details: { node, incarnation: life } } : undefined;
    const decision = this.#supervisor.died(
      { worker, component: rank.kind, code: null, signal: "SIGKILL", failure, logTail: [] },
      "rank",
      this.nowMs,
    );
    if (decision.type === "fail") throw new BrokenInvariant(`S2: the run gave up: ${decision.cause.message}`);
    rank.node = undefined;
    rank.process = undefined;
    if (process) this.#cluster.network.link("runner", node, () => process.linkClosed());
    for (const call of this.#calls.values()) {
      if (call.rank !== rank) continue;
      this.#held.delete(call.id);
      Object.assign(call, { token: undefined, lent: false, answer: undefined, wants: undefined });
    }
    if (!process) return;
    const effects = [this.#prompts, this.#items].flatMap((channel) => channel.workerDied({ worker }));
    this.#apply(effects);
    this.#locked(this.#lock.workerDied({ worker }));
  }

  #send(call: OpenCall): void {
    const { process, node } = call.rank;
    if (process && node) this.#cluster.network.link("runner", node, () => process.called(call));
  }

  #answer(call: OpenCall, items: readonly string[] | undefined): void {
    const { process, node } = call.rank;
    call.wants = undefined;
    if (process && node) this.#cluster.network.link("runner", node, () => process.answered(call.id, items));
  }

  /** A call that cannot go on says so and lends its devices. */
  #blockUnless(
    effects: readonly ChannelEffect[],
    answers: (effect: ChannelEffect) => boolean,
    call: OpenCall,
    channel: string,
    on: "take" | "put",
  ): void {
    call.wants = on;
    if (!effects.some(answers)) {
      const { token } = call;
      if (token !== undefined) {
        call.lent = true;
        call.token = undefined;
        this.#locked(this.#lock.lend({ token }));
      }
      this.#locked(this.#lock.park({ call: call.id, stream: { channel, stream: call.step }, on }));
    }
    this.#apply(effects);
  }

  /** C6: acknowledges and commits on every channel of the call in one turn. */
  #settle(call: OpenCall): void {
    const effects: ChannelEffect[] = [];
    if (call.kind === "trainer") this.#steps.get(call.step)?.trained.push(...(this.#held.get(call.id) ?? []));
    this.#held.delete(call.id);
    for (const channel of this.#channelsOf(call)) effects.push(...channel.ack({ call: call.id }));
    for (const channel of this.#channelsOf(call)) effects.push(...channel.commit({ call: call.id }));
    this.#apply(effects);
  }
  readonly #held = new Map<string, string[]>();

  #apply(effects: readonly ChannelEffect[]): void {
    for (const effect of effects) {
      if (effect.type === "finished") continue;
      if (effect.type === "stale-ack") throw new BrokenInvariant("C1: what was not held was acknowledged");
      const call = this.#calls.get(effect.call);
      if (!call) continue;
      if (effect.type === "fail" || effect.type === "put-refused")
        throw new BrokenInvariant(`C4: ${effect.error.message}`);
      let answer: readonly string[] | undefined;
      if (effect.type === "deliver") {
        answer = effect.deliveries.map(({ payload }) => payload as string);
        this.#held.set(call.id, [...(this.#held.get(call.id) ?? []), ...answer]);
      }
      this.#lock.unpark({ call: call.id });
      if (!call.lent) this.#answer(call, answer);
      else {
        call.answer = answer;
        this.#locked(this.#lock.reclaim({ request: call.id, call: call.id, nowMs: this.nowMs }));
      }
    }
  }

  #locked(effects: readonly LockEffect[]): void {
    for (const effect of effects) {
      if (effect.type === "refuse" || effect.type === "stale") throw new BrokenInvariant(`L3: ${effect.error.message}`);
      if (effect.type === "grant") {
        const call = this.#calls.get(effect.call) as OpenCall;
        if (effect.token <= this.#lastToken) throw new BrokenInvariant("L3: tokens rise");
        this.#lastToken = effect.token;
        const { answer } = call;
        Object.assign(call, { token: effect.token, lent: false, answer: undefined });
        this.#answer(call, answer);
        continue;
      }
      const rank = this.#ranks.find(({ worker }) => worker === effect.worker) as Rank;
      const { process, node, life } = rank;
      if (!process || !node) continue;
      const done = () => {
        if (rank.life !== life || rank.process !== process) return;
        const { worker } = effect;
        this.#locked(effect.type === "onload" ? this.#lock.onloaded({ worker }) : this.#lock.offloaded({ worker }));
      };
      this.#cluster.network.link("runner", node, () => process.swap(done));
    }
  }

  #beginSteps(): void {
    const { scenario, journal } = this.#cluster;
    const ahead = scenario.overlapsSteps ? 2 : 1;
    while (this.#begun < scenario.numSteps && this.#begun < journal.length + ahead) this.#begin(++this.#begun);
  }

  #begin(step: number): void {
    const begun: Step = { step, calls: new Set(), trained: [] };
    this.#steps.set(step, begun);
    const opened: OpenCall[] = [];
    for (const rank of this.#ranks) {
      const { kind, worker } = rank;
      const id = `${step}:${worker}`;
      const max = 1 + ((step + rank.index) % 3);
      const call: OpenCall = {
        id,
        kind,
        step,
        max,
        rank,
        sequence: ++this.#sequence,
        token: undefined,
        lent: false,
        answer: undefined,
        wants: undefined,
      };
      const refs = (names: readonly string[]) => names.map((channel) => ({ channel, stream: step }));
      const [consumes, produces] = kind === "maker" ? [["prompts"], ["items"]] : [["items"], []];
      this.#lock.openCall({
        call: id,
        worker,
        sequence: step * 2 + (kind === "maker" ? 0 : 1),
        consumes: refs(consumes as string[]),
        produces: refs(produces as string[]),
      });
      if (kind === "maker") this.#prompts.open({ call: id, worker, role: "source", stream: step });
      this.#items.open({ call: id, worker, role: kind === "maker" ? "sink" : "source", stream: step });
      this.#calls.set(id, call);
      begun.calls.add(id);
      opened.push(call);
    }
    const feed = `feed of ${step}`;
    this.#prompts.open({ call: feed, worker: "runner", role: "sink", stream: step });
    const items = this.#cluster.promptsOf(step).map((payload) => ({ payload, sizeBytes: 1 }));
    this.#apply(this.#prompts.put({ call: feed, put: ++this.#lastRequest, items, nowMs: this.nowMs }));
    this.#apply(this.#prompts.close({ call: feed, outcome: { ok: true } }));
    for (const call of opened) this.#send(call);
  }

  /** J1: in order, with what was trained; then there is room for a further step. */
  #commit(): void {
    const { journal, scenario } = this.#cluster;
    for (;;) {
      const next = this.#steps.get(journal.length + 1);
      if (next === undefined || next.calls.size > 0) break;
      this.#cluster.commit({ step: next.step, items: next.trained });
      this.#steps.delete(next.step);
    }
    if (journal.length < scenario.numSteps) {
      this.#beginSteps();
      return;
    }
    const { holds, waiting } = this.#lock.snapshot();
    if (holds.length + waiting.length > 0) throw new BrokenInvariant("L3: a lock is stuck at the end");
    const used = this.#prompts.snapshot().usedItems + this.#items.snapshot().usedItems;
    if (used > 0) throw new BrokenInvariant(`C3: ${used} items are left in channels`);
    this.#cluster.runnerHasFinished = true;
    for (let i = 0; i < 40; i++) this.#beat(true);
    this.die();
  }
}
