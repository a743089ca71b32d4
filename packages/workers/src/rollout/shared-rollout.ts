/**
 * One rank's part in a rollout that the ranks of its group share. A rank owns the episodes of the prompts that it took, and
 * delivers them; where each runs is what its `EpisodeRouter` says, by what other ranks report. It runs what they send it, too,
 * and stays until all are done.
 *
 * - SH1 what a finished turn has chosen, and what its tool said, is at the owner before the episode goes on at another rank, so
 *   the death of a rank costs what others own the turn under way alone
 * - SH2 the owner's death costs what it had not delivered and what has not ended at another rank: its prompts are taken again,
 *   and what the others run for it to the end is theirs to give, as long as their calls last
 * - SH3 where an episode runs changes none of its tokens; ranks of other weights share nothing
 * - SH4 where episodes begin, and go on, is decided over all that ranks have told of theirs: a rank that places in groups waits until
 *   the others have told of their first ones, and a moment at most; what was not told, or is told late, costs time alone
 */
import type { Clock, Completion } from "@treadle/contracts";
import {
  EpisodeRouter,
  type GroupConditions,
  GroupPlacement,
  type LiveMigration,
  type LivePlacement,
  type MeasuredInterference,
  type RouterOrder,
  WorkerLoads,
} from "@treadle/trajectories";
import type { CallOrder } from "./call-order.ts";
import type { EpisodeBatch as Batch, EpisodeRow } from "./episode-batch.ts";
import { EpisodeHost, type EpisodeHostOptions, type HostedEpisode } from "./episode-host.ts";
import { nameOf, stemOf } from "./episode-name.ts";
import { FirstFailure } from "./first-failure.ts";
import { Gathering, machineClock } from "./gathering.ts";
import { RankExchange, type RankExchangeOptions } from "./rank-exchange.ts";
import {
  type EpisodeState,
  type KeptEpisode,
  type Move,
  noLoad,
  type RankLoad,
  type RankMessage,
} from "./rank-messages.ts";

export type SharedRolloutOptions = Pick<GroupConditions, "F" | "places"> &
  Pick<
    EpisodeHostOptions,
    "engine" | "sampling" | "contextLength" | "order" | "arrivals" | "tool" | "over" | "tracer"
  > &
  Omit<RankExchangeOptions, "hello" | "events"> & {
    readonly placement: LivePlacement;
    readonly migrate: LiveMigration;
    /** of each rank, as `GroupConditions` has it, with what others say; undefined where ranks are equal */
    readonly tokenTimes?: (number | undefined)[] | undefined;
    /** of this rank over all of its calls */
    readonly measured: MeasuredInterference;
    /** default: the machine's */
    readonly clock?: Clock | undefined;
    /** what is computed of a moved episode before it goes on, in tokens of decoding, a token */
    readonly prefillRatio: number;
    /** what a tool has kept of an episode is lost with its rank, so the episode begins again */
    readonly isToolStateful: boolean;
  };

/** What a host tells an episode's owner. */
type Report = Extract<RankMessage, { type: "turn" | "answered" | "lost" | "ended" }>;

export class SharedRollout {
  readonly #options: SharedRolloutOptions;
  readonly #exchange: RankExchange;
  readonly #host: EpisodeHost;
  readonly #isUp: boolean[];
  readonly #isDone: boolean[];
  readonly #places: number[];
  /** what each rank says that it has; undefined: it has not said yet, or is down */
  readonly #loads: (RankLoad | undefined)[];
  /** how many of this rank's may be at each other one until that says again what it has */
  readonly #quotas: number[];
  /** whether nothing was sent to it since it has said so */
  readonly #isFresh: boolean[];
  readonly #group: GroupPlacement;
  /** SH4 */
  readonly #gathering: Gathering;
  /** under way, the oldest first */
  readonly #batches = new Set<Batch>();
  #numUnfinished = 0;
  #base = 0;
  /** SH2: what this rank has run to the end for each that may die, and all that is known of those which died, by name */
  readonly #endedHere = new Map<number, KeptEpisode[]>();
  readonly #orphans = new Map<string, KeptEpisode>();
  #numMoves = 0;
  #hasFinished = false;
  #busyShare: number | undefined;
  #look: () => void = () => {};
  #roomGrew: () => void = () => {};
  readonly #failure = new FirstFailure();

  constructor(options: SharedRolloutOptions) {
    this.#options = options;
    const { rank, worldSize, places, engine, placement, clock = machineClock } = options;
    this.#isUp = Array.from({ length: worldSize }, (_, other) => other === rank);
    this.#isDone = new Array<boolean>(worldSize).fill(false);
    this.#group = new GroupPlacement({
      ...options,
      own: rank,
      numRanks: worldSize,
      changed: (episode) => this.#exchange.episodeChanged(episode),
    });
    this.#places = new Array<number>(worldSize).fill(places);
    this.#loads = new Array<RankLoad | undefined>(worldSize).fill(undefined);
    this.#quotas = new Array<number>(worldSize).fill(0);
    this.#isFresh = new Array<boolean>(worldSize).fill(false);
    const others = [...this.#isUp.keys()].filter((other) => other !== rank);
    this.#gathering = new Gathering(placement === "predicted" ? others : [], clock);
    this.#host = new EpisodeHost({
      ...options,
      now: () => clock.now(),
      events: {
        turnEnded: (hosted, state) => this.#tell(hosted, { type: "turn", ...attemptOf(hosted), state }),
        answered: (hosted, state, outcome, hasLeft) =>
          this.#tell(hosted, { type: "answered", ...attemptOf(hosted), state, ...outcome, hasLeft }),
        ended: (hosted, state, { finishReason, policyVersion }) => {
          this.#keep(hosted, { state, finishReason, policyVersion });
          this.#tell(hosted, { type: "ended", ...attemptOf(hosted), state, finishReason, policyVersion });
        },
        lost: (hosted) => this.#tell(hosted, { type: "lost", ...attemptOf(hosted) }),
        orphanEnded: ({ name }, state, { finishReason, policyVersion }) => {
          // SH2
          const kept = { name: stemOf(name), state, finishReason, policyVersion };
          if (finishReason !== "abort") {
            this.#adopt([kept]);
            this.#exchange.sayAll({ type: "kept", episodes: [kept] });
          }
          this.#loadChanged();
        },
        changed: () => this.#loadChanged(),
      },
    });
    this.#host.failed.catch(this.#failure.fail);
    this.#exchange = new RankExchange({
      ...options,
      hello: () => {
        const tokenSeconds = options.tokenTimes?.[rank];
        return { weightsId: engine.weightsId, places, tokenSeconds, kept: [...this.#orphans.values()] };
      },
      events: {
        up: (other, { places: room, tokenSeconds, kept }) => {
          if (tokenSeconds !== undefined) options.tokenTimes?.splice(other, 1, tokenSeconds);
          this.#adopt(kept);
          this.#up(other, room);
        },
        down: (other) => this.#down(other),
        said: (other, message) => this.#said(other, message),
        load: (other) => this.#loadBeside(other),
        episodes: this.#group,
        failed: this.#failure.fail,
      },
    });
    this.#exchange.start();
  }

  /** Episodes of this rank that went on elsewhere than they had begun. */
  get numMoves(): number {
    return this.#numMoves;
  }

  /** Share of the call in which this rank had an episode to compute, its own or another's. */
  get busyShare(): number {
    return this.#busyShare ?? this.#host.busyShare;
  }

  /** Own episodes that have not ended. */
  get numUnfinished(): number {
    return this.#numUnfinished;
  }

  /** Resolves when fewer of this rank's own episodes than that are unfinished. One at a time waits for it. */
  async below(most: number): Promise<void> {
    while (this.#numUnfinished >= most) {
      const grew = new Promise<void>((resolve) => {
        this.#roomGrew = resolve;
      });
      await Promise.race([grew, this.failed]);
    }
  }

  /** Rejects with what failed first, and never resolves. */
  get failed(): Promise<never> {
    return this.#failure.happened;
  }

  /** Fails all of it. */
  readonly fail = (error: unknown): void => this.#failure.fail(error);

  /** Resolves when all have ended; other batches may be under way. */
  async play(rows: readonly EpisodeRow[], order: CallOrder, ended: Batch["ended"]): Promise<void> {
    if (rows.length === 0) return;
    let resolve!: () => void;
    const promise = new Promise<void>((settle) => {
      resolve = settle;
    });
    const { placement, measured, worldSize } = this.#options;
    const base = this.#base;
    this.#base += rows.length;
    this.#numUnfinished += rows.length;
    const predicted = rows.map((_, index) => order.predicted(index));
    const noise = { logSd: predicted[0]?.logSd ?? 0, measured: measured.factor };
    this.#group.conditions = { ...this.#options, ...noise, mostTokens: order.mostTokens };
    const tokens = predicted.map((each) => each.tokens);
    this.#group.begin(base, tokens);
    if (placement === "predicted") await Promise.race([this.#gathering.over(), this.#failure.happened]); // SH4
    this.#group.place();
    const loads = new WorkerLoads(worldSize);
    const router = new EpisodeRouter({
      numEpisodes: rows.length,
      policy: this.#group.policy(base, loads),
      loads,
      // Placing has already divided what a rank has room for. Of what it leaves idle, each owner has its part.
      room: (other) => (placement === "predicted" ? (this.#places[other] as number) : this.#roomAt(other)),
      sharedRoom: placement === "own" ? undefined : (other) => this.#roomAt(other),
    });
    const [states, losses] = [rows.map(() => undefined), rows.map(() => 0)];
    const batch: Batch = { base, rows, states, losses, router, order, ended, over: resolve };
    this.#batches.add(batch);
    for (let other = 0; other < worldSize; other++) {
      if (!this.#isUp[other]) this.#route(batch, () => router.down(other));
      if (this.#isFresh[other]) this.#grant(other, this.#numWaiting + rows.length);
    }
    const priorities = rows.map((_, index) => order.priority(index));
    this.#settle([...this.#orphans.values()], [batch]);
    this.#route(batch, () => router.offerAll(priorities));
    try {
      await Promise.race([promise, this.#failure.happened]);
    } finally {
      this.#numMoves += router.numMoves;
      this.#batches.delete(batch);
    }
  }

  /** Runs what others send until all that are up are done. */
  async finish(): Promise<void> {
    this.#isDone[this.#options.rank] = true;
    this.#exchange.sayAll({ type: "done" });
    const isOver = () => this.#isUp.every((up, other) => !up || this.#isDone[other]);
    while (!isOver()) {
      const changed = new Promise<void>((resolve) => {
        this.#look = resolve;
      });
      await Promise.race([changed, this.#failure.happened]);
    }
    this.#busyShare = this.#host.busyShare;
    await this.#exchange.close();
    await this.#host.end();
    this.#hasFinished = true;
  }

  /** Where it has not finished, the call has failed: others go on without this rank. */
  async close(): Promise<void> {
    if (this.#hasFinished) return;
    this.fail(new Error("the call is over"));
    this.#batches.clear(); // nothing that waits begins any more
    await this.#exchange.close();
    await this.#host.end();
  }

  #up(rank: number, places: number): void {
    this.#isUp[rank] = true;
    this.#isDone[rank] = false;
    this.#places[rank] = places;
    this.#group.up(rank);
    if (this.#isDone[this.#options.rank]) this.#exchange.say(rank, { type: "done" });
    for (const batch of this.#batches) this.#route(batch, () => batch.router.up(rank));
    this.#place();
    this.#look();
  }

  #down(rank: number): void {
    this.#isUp[rank] = false;
    this.#loads[rank] = undefined;
    this.#quotas[rank] = 0;
    this.#group.down(rank);
    this.#gathering.told(rank);
    this.#host.orphan(rank);
    const kept = this.#endedHere.get(rank) ?? [];
    this.#endedHere.delete(rank);
    for (const episode of kept) this.#orphans.set(episode.name, episode);
    if (kept.length > 0) this.#exchange.sayAll({ type: "kept", episodes: kept });
    for (const batch of this.#batches) {
      const { router, order } = batch;
      for (const index of batch.rows.keys()) {
        const isThere = router.homeOf(index) === rank && ["decode", "tool"].includes(router.phaseOf(index));
        if (isThere) this.#loseSandbox(batch, index);
      }
      this.#route(batch, () => router.down(rank, (index) => order.priority(index)));
    }
    this.#settle(kept);
    this.#place();
    this.#look();
  }

  #said(rank: number, message: Exclude<RankMessage, { type: "hello" | "gone" }>): void {
    switch (message.type) {
      case "run": {
        const { episode, attempt, name, prompt, key, priority, state } = message;
        this.#run({ owner: rank, episode, attempt, name, prompt, key, priority: () => priority, state });
        return;
      }
      case "leave":
        this.#host.leave(rank, message);
        return;
      case "priority":
        this.#host.prioritise(rank, message);
        return;
      case "load":
        this.#loads[rank] = message.load;
        this.#isFresh[rank] = true;
        this.#grant(rank, this.#numWaiting);
        this.#place();
        return;
      case "episodes":
        this.#group.hear(rank, message);
        if (message.numUntold === 0) this.#gathering.told(rank); // UG6
        return;
      case "kept":
        this.#adopt(message.episodes);
        return;
      case "done":
        this.#isDone[rank] = true;
        this.#gathering.told(rank);
        this.#look();
        return;
      default:
        this.#reported(message);
    }
  }

  #run(hosted: HostedEpisode): void {
    try {
      this.#host.run(hosted);
    } catch (error) {
      this.#failure.fail(error);
    }
    this.#loadChanged();
  }

  /** What is in the engine's queue counts for everybody's router. */
  #loadChanged(): void {
    const { rank } = this.#options;
    const load = this.#loadBeside(rank);
    this.#exchange.changed();
    const { active: before } = this.#loadOf(rank);
    this.#loads[rank] = load;
    if (before !== load.active) this.#place();
  }

  /** Own episodes that wait for a place, wherever. */
  get #numWaiting(): number {
    let sum = 0;
    for (const { router } of this.#batches) sum += router.numWaiting;
    return sum;
  }

  /** Own episodes at a rank, as far as is known. */
  #ownLoadAt(rank: number): number {
    let sum = 0;
    for (const { router } of this.#batches) sum += router.ownLoadOf(rank);
    return sum;
  }

  /** What waits, in all batches, goes where there is room by now, whichever goes first going first. */
  #place(): void {
    const waiting = new Set([...this.#batches].filter(({ router }) => router.numWaiting > 0));
    const first = ({ router }: Batch): number => router.firstPriority ?? Number.NEGATIVE_INFINITY;
    while (waiting.size > 0) {
      const batch = [...waiting].reduce((a, b) => (first(b) > first(a) ? b : a));
      this.#know(batch);
      const orders = batch.router.look(1);
      this.#obey(batch, orders);
      if (orders.length === 0 || batch.router.numWaiting === 0) waiting.delete(batch);
    }
  }

  /** A batch knows what all others have at each rank whenever it is asked where its episodes go. */
  #know({ router }: Batch): void {
    for (const [rank, isUp] of this.#isUp.entries())
      if (isUp) router.others(rank, this.#loadOf(rank).active + this.#ownLoadAt(rank) - router.ownLoadOf(rank));
  }

  /** What a batch frees by it goes to its own first. */
  #route(batch: Batch, decide: () => readonly RouterOrder[]): void {
    this.#know(batch);
    this.#obey(batch, decide());
  }

  #loadOf(rank: number): RankLoad {
    return this.#loads[rank] ?? noLoad;
  }

  /** ER4 */
  #roomAt(rank: number): number {
    const places = this.#places[rank] as number;
    if (rank === this.#options.rank) return places;
    return Math.min(places, (this.#quotas[rank] as number) + this.#loadOf(rank).active);
  }

  /**
   * A rank that has just said what it has may be sent this rank's part of what is free there, by how many wait at each, and
   * one at least. It says so again once they have come, so what nobody else wants is taken soon, and nothing is promised twice.
   */
  #grant(rank: number, numWaiting: number): void {
    const load = this.#loads[rank];
    if (!load || rank === this.#options.rank) return;
    const numThere = this.#ownLoadAt(rank);
    const numFree = (this.#places[rank] as number) - load.active - numThere;
    const numElsewhere = this.#loads.reduce((sum, other) => sum + (other?.waiting ?? 0), 0);
    const part = Math.max(1, Math.floor((numFree * numWaiting) / Math.max(1, numWaiting + numElsewhere)));
    this.#quotas[rank] = numThere + (numFree > 0 ? part : 0);
  }

  /** What this rank tells that one. Its own that wait for a place count as its own, wherever they will get it. */
  #loadBeside(other: number): RankLoad {
    const waiting = other === this.#options.rank ? 0 : this.#numWaiting;
    return { active: this.#host.activeBeside(other), waiting, yours: this.#host.activeOf(other) };
  }

  /** SH2 */
  #keep({ owner, name }: HostedEpisode, how: Omit<KeptEpisode, "name">): void {
    if (owner === this.#options.rank || how.finishReason === "abort") return;
    const kept = this.#endedHere.get(owner);
    const episode = { name: stemOf(name), ...how };
    if (kept) kept.push(episode);
    else this.#endedHere.set(owner, [episode]);
  }

  #adopt(kept: readonly KeptEpisode[]): void {
    for (const episode of kept) this.#orphans.set(episode.name, episode);
    this.#settle(kept);
    this.#place();
  }

  /** Of a rank that died, and so somebody's again: those of these batches are done. */
  #settle(kept: readonly KeptEpisode[], batches: Iterable<Batch> = this.#batches): void {
    if (kept.length === 0) return;
    for (const batch of batches) {
      const indices = new Map(batch.rows.map(({ name }, index) => [name, index]));
      for (const { name, state, finishReason, policyVersion } of kept) {
        const index = indices.get(name);
        if (index === undefined || policyVersion !== this.#options.engine.policyVersion) continue; // SH3
        const settle = () => batch.router.settle(index);
        this.#end(batch, settle, () => {
          // What it does here again is nobody's.
          this.#host.forget(this.#options.rank, batch.base + index);
          batch.order.cut(index);
          this.#deliver(batch, index, state, { finishReason, policyVersion });
        });
      }
    }
  }

  /** `deliver`: where it is the first that is known of its end. */
  #end(batch: Batch, decide: () => ReturnType<EpisodeRouter["settle"]>, deliver: () => void): void {
    this.#know(batch);
    const { isFirst, orders } = decide();
    if (isFirst) {
      deliver();
      this.#numUnfinished--;
      this.#roomGrew();
    }
    this.#obey(batch, orders);
    if (batch.router.isOver) batch.over();
  }

  #deliver(
    batch: Batch,
    index: number,
    { tokens, logprobs, answers }: EpisodeState,
    how: Pick<Completion, "finishReason" | "policyVersion">,
  ): void {
    const { temperature } = this.#options.sampling;
    batch.ended(index, { tokens, logprobs, temperature, ...how }, answers);
  }

  /** To an episode's owner, which may be this rank. */
  #tell(hosted: HostedEpisode, message: Report): void {
    if (hosted.owner === this.#options.rank) this.#reported(message);
    else this.#exchange.say(hosted.owner, message);
    this.#loadChanged();
  }

  #reported(message: Report): void {
    this.#hear(message);
    this.#place(); // what one batch leaves free is for all of them
  }

  /** SH1 */
  #hear(message: Report): void {
    const batch = this.#batchOf(message.episode);
    const index = message.episode - (batch?.base ?? 0);
    // Of an attempt that counted no more, of a batch that is over.
    if (!batch?.router.isCurrent(index, message.attempt)) return;
    const { router, order, states } = batch;
    const { attempt } = message;
    switch (message.type) {
      case "turn": {
        const { state } = message;
        order.turnEnded(index, this.#completionOf(state));
        const generatedTokens = state.answers.reduce((sum, [from, to]) => sum - (to - from), state.tokens.length);
        const { tokens: remainingTokens } = order.predicted(index);
        const transferSeconds =
          this.#options.prefillRatio * ((batch.rows[index] as EpisodeRow).prompt.tokens.length + state.tokens.length);
        this.#route(batch, () =>
          router.turnEnded(index, attempt, { remainingTokens, generatedTokens, transferSeconds }),
        );
        const { episode } = message;
        const home = router.homeOf(index);
        // Here its priority is asked for when it waits next.
        if (home !== this.#options.rank)
          this.#exchange.say(home, { type: "priority", episode, attempt, priority: order.priority(index) });
        return;
      }
      case "answered": {
        const { state, toolSeconds, hasToolFailed, hasLeft } = message;
        const [from, to] = state.answers.at(-1) ?? [0, 0];
        // The order knows of a turn that is done again.
        if (state.tokens.length > order.numTokens(index))
          order.toolEnded(index, { toolSeconds, hasToolFailed, observedTokens: to - from });
        states[index] = state;
        if (hasLeft) this.#route(batch, () => router.left(index, attempt, order.priority(index)));
        else router.goesOn(index, attempt);
        return;
      }
      case "lost":
        this.#loseSandbox(batch, index);
        this.#route(batch, () => router.gaveUp(index, attempt, order.priority(index)));
        return;
      case "ended": {
        const { state, finishReason, policyVersion } = message;
        if (finishReason === "abort" && router.homeOf(index) !== this.#options.rank) {
          // Its host computes no more, which is no end of an episode.
          this.#loseSandbox(batch, index);
          this.#route(batch, () => router.gaveUp(index, attempt, order.priority(index)));
          return;
        }
        const end = () => router.ended(index, attempt);
        this.#end(batch, end, () => {
          order.ended(index, { ...this.#completionOf(state), finishReason, policyVersion });
          this.#deliver(batch, index, state, { finishReason, policyVersion });
        });
      }
    }
  }

  #completionOf({ tokens, logprobs }: EpisodeState): Completion {
    const { temperature } = this.#options.sampling;
    const { policyVersion } = this.#options.engine;
    return { tokens, logprobs, temperature, finishReason: "stop", policyVersion };
  }

  /** What the tool held of it has ended with its stay there, so what it does next is under another name. */
  #loseSandbox({ losses, states }: Batch, index: number): void {
    (losses[index] as number)++;
    if (this.#options.isToolStateful) states[index] = undefined;
  }

  /** What people are told of a move. */
  #moveOf({ router, order }: Batch, index: number, from: number, to: number): Move {
    const predictedTokens = order.predicted(index).tokens;
    return { to, predictedTokens, loadHere: router.loadOf(from), loadThere: router.loadOf(to) };
  }

  #batchOf(episode: number): Batch | undefined {
    for (const batch of this.#batches)
      if (episode >= batch.base && episode < batch.base + batch.rows.length) return batch;
    return undefined;
  }

  #obey(batch: Batch, orders: readonly RouterOrder[]): void {
    const { rank: own } = this.#options;
    for (const routed of orders) {
      const { episode: index, rank, attempt } = routed;
      const episode = batch.base + index;
      if (routed.type === "leave") {
        const numAnswers = batch.states[index]?.answers.length ?? 0;
        const departure = { episode, attempt, numAnswers, move: this.#moveOf(batch, index, rank, routed.target) };
        if (rank === own) this.#host.leave(own, departure);
        else this.#exchange.say(rank, { type: "leave", ...departure });
        continue;
      }
      const { prompt, key, name: stem } = batch.rows[index] as EpisodeRow;
      const state = batch.states[index];
      // What a tool may still hold under another owner's name, or one that was lost, is not this attempt's.
      const name = nameOf(stem, `${this.#exchange.nonce}.${episode}`, batch.losses[index] as number);
      const { order } = batch;
      const to = { episode, attempt, name, prompt: prompt.tokens, key, state };
      if (rank === own) this.#run({ ...to, owner: own, priority: () => order.priority(index) });
      else {
        this.#isFresh[rank] = false;
        this.#exchange.say(rank, { type: "run", ...to, priority: order.priority(index) });
      }
    }
  }
}

const attemptOf = ({ episode, attempt }: HostedEpisode) => ({ episode, attempt });
