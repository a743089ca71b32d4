/**
 * One rank's part in a rollout that the ranks of its group share. A rank owns the episodes of the prompts that it took, and
 * delivers them; where each runs is what its `EpisodeRouter` says, by what other ranks report. It runs what they send it, too,
 * and stays until all are done.
 *
 * - SH1 what a finished turn has chosen, and what its tool said, is at the owner before the episode goes on at another rank, so
 *   the death of a rank costs what others own the turn under way alone
 * - SH2 the owner's death costs its episodes all they have: their prompts are taken again
 * - SH3 where an episode runs changes none of its tokens; ranks of other weights share nothing
 */
import type { Completion, Prompt } from "@treadle/contracts";
import {
  EpisodeRouter,
  type LivePlacementOptions,
  livePlacement,
  type RouterOrder,
  WorkerLoads,
} from "@treadle/trajectories";
import type { CallOrder } from "./call-order.ts";
import { EpisodeHost, type EpisodeHostOptions, type HostedEpisode } from "./episode-host.ts";
import { FirstFailure } from "./first-failure.ts";
import { RankExchange, type RankExchangeOptions } from "./rank-exchange.ts";
import type { EpisodeState, RankMessage } from "./rank-messages.ts";

/** One episode to play. */
export type EpisodeRow = { readonly prompt: Prompt; readonly key: number; readonly name: string };

export type SharedRolloutOptions = Pick<LivePlacementOptions, "placement" | "migrate" | "F" | "places"> &
  Pick<EpisodeHostOptions, "engine" | "sampling" | "order" | "tool" | "over"> &
  Omit<RankExchangeOptions, "hello" | "events"> & {
    /** what is computed of a moved episode before it goes on, in tokens of decoding, a token */
    readonly prefillRatio: number;
    /** what a tool has kept of an episode is lost with its rank, so the episode begins again */
    readonly isToolStateful: boolean;
  };

type Batch = {
  readonly base: number;
  readonly rows: readonly EpisodeRow[];
  readonly states: (EpisodeState | undefined)[];
  /** how often its host was lost, and with it what its tool held */
  readonly losses: number[];
  readonly router: EpisodeRouter;
  readonly order: CallOrder;
  readonly ended: (index: number, completion: Completion, answers: EpisodeState["answers"]) => void;
  readonly over: () => void;
};

export class SharedRollout {
  readonly #options: SharedRolloutOptions;
  readonly #exchange: RankExchange;
  readonly #host: EpisodeHost;
  readonly #isUp: boolean[];
  readonly #isDone: boolean[];
  readonly #places: number[];
  readonly #others: number[];
  #batch: Batch | undefined;
  #base = 0;
  #numMoves = 0;
  #hasFinished = false;
  #look: () => void = () => {};
  readonly #failure = new FirstFailure();

  constructor(options: SharedRolloutOptions) {
    this.#options = options;
    const { rank, worldSize, places, engine } = options;
    this.#isUp = Array.from({ length: worldSize }, (_, other) => other === rank);
    this.#isDone = new Array<boolean>(worldSize).fill(false);
    this.#places = new Array<number>(worldSize).fill(places);
    this.#others = new Array<number>(worldSize).fill(0);
    this.#host = new EpisodeHost({
      ...options,
      events: {
        turnEnded: (hosted, state) => this.#tell(hosted, { type: "turn", ...attemptOf(hosted), state }),
        answered: (hosted, state, outcome, hasLeft) =>
          this.#tell(hosted, { type: "answered", ...attemptOf(hosted), state, ...outcome, hasLeft }),
        ended: (hosted, state, { finishReason, policyVersion }) =>
          this.#tell(hosted, { type: "ended", ...attemptOf(hosted), state, finishReason, policyVersion }),
      },
    });
    this.#host.failed.catch(this.#failure.fail);
    this.#exchange = new RankExchange({
      ...options,
      hello: { policyVersion: engine.policyVersion, places },
      events: {
        up: (other, hello) => this.#up(other, hello.places),
        down: (other) => this.#down(other),
        said: (other, message) => this.#said(other, message),
        load: (other) => this.#host.count((owner) => owner !== other),
        failed: this.#failure.fail,
      },
    });
    this.#exchange.start();
  }

  /** Episodes of this rank that went on elsewhere than they had begun. */
  get numMoves(): number {
    return this.#numMoves;
  }

  /** Resolves when all have ended; one batch at a time. */
  async play(rows: readonly EpisodeRow[], order: CallOrder, ended: Batch["ended"]): Promise<void> {
    if (rows.length === 0) return;
    let resolve!: () => void;
    const promise = new Promise<void>((settle) => {
      resolve = settle;
    });
    const { placement, migrate, F, places, rank, worldSize } = this.#options;
    const loads = new WorkerLoads(worldSize);
    const predicted = rows.map((_, index) => order.predicted(index));
    const policy = livePlacement({
      placement,
      migrate,
      predictions: predicted.map(({ tokens }) => tokens),
      logSd: predicted[0]?.logSd ?? 0,
      own: rank,
      loads,
      F,
      places,
      beside: (other) => this.#others[other] as number,
    });
    const router = new EpisodeRouter({
      numEpisodes: rows.length,
      policy,
      loads,
      room: (other) => this.#places[other] as number,
      shares: placement !== "own",
    });
    const empty = rows.map(() => undefined);
    const losses = rows.map(() => 0);
    this.#batch = { base: this.#base, rows, states: empty, losses, router, order, ended, over: resolve };
    this.#base += rows.length;
    for (let other = 0; other < worldSize; other++) {
      if (!this.#isUp[other]) this.#obey(router.down(other));
      router.others(other, this.#others[other] as number);
    }
    this.#obey(router.offerAll(rows.map((_, index) => order.priority(index))));
    try {
      await Promise.race([promise, this.#failure.happened]);
    } finally {
      this.#numMoves += router.numMoves;
      this.#batch = undefined;
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
    await this.#exchange.close();
    await this.#host.end();
    this.#hasFinished = true;
  }

  /** Where it has not finished, the call has failed: others go on without this rank. */
  async close(): Promise<void> {
    if (this.#hasFinished) return;
    await this.#exchange.close();
    await this.#host.end();
  }

  #up(rank: number, places: number): void {
    this.#isUp[rank] = true;
    this.#isDone[rank] = false;
    this.#places[rank] = places;
    this.#others[rank] = 0;
    if (this.#isDone[this.#options.rank]) this.#exchange.say(rank, { type: "done" });
    if (this.#batch) this.#obey(this.#batch.router.up(rank));
    this.#look();
  }

  #down(rank: number): void {
    this.#isUp[rank] = false;
    this.#others[rank] = 0;
    this.#host.forget(rank);
    const batch = this.#batch;
    if (batch) {
      const { router, order, states, losses } = batch;
      for (const index of batch.rows.keys()) {
        const isThere = router.homeOf(index) === rank && ["decode", "tool"].includes(router.phaseOf(index));
        if (!isThere) continue;
        (losses[index] as number)++;
        if (this.#options.isToolStateful) states[index] = undefined;
      }
      this.#obey(router.down(rank, (index) => order.priority(index)));
    }
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
        this.#host.leave(rank, message.episode, message.attempt);
        return;
      case "load":
        this.#others[rank] = message.others;
        if (!this.#batch) return;
        this.#batch.router.others(rank, message.others);
        this.#obey(this.#batch.router.look());
        return;
      case "done":
        this.#isDone[rank] = true;
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
    const others = this.#host.count((owner) => owner !== rank);
    this.#exchange.changed();
    if (this.#others[rank] === others) return;
    this.#others[rank] = others;
    if (!this.#batch) return;
    this.#batch.router.others(rank, others);
    this.#obey(this.#batch.router.look());
  }

  /** To an episode's owner, which may be this rank. */
  #tell(hosted: HostedEpisode, message: Extract<RankMessage, { type: "turn" | "answered" | "ended" }>): void {
    if (hosted.owner === this.#options.rank) this.#reported(message);
    else this.#exchange.say(hosted.owner, message);
    this.#loadChanged();
  }

  /** SH1 */
  #reported(message: Extract<RankMessage, { type: "turn" | "answered" | "ended" }>): void {
    const batch = this.#batch;
    const index = message.episode - (batch?.base ?? 0);
    // Of an attempt that counted no more, of a batch that is over.
    if (!batch || index < 0 || !batch.router.isCurrent(index, message.attempt)) return;
    const { router, order, states } = batch;
    const { state, attempt } = message;
    const completion = {
      tokens: state.tokens,
      logprobs: state.logprobs,
      temperature: this.#options.sampling.temperature,
      finishReason: "stop" as const,
      policyVersion: this.#options.engine.policyVersion,
    };
    switch (message.type) {
      case "turn": {
        order.turnEnded(index, completion);
        const generatedTokens = state.tokens.length;
        const { tokens: remainingTokens } = order.predicted(index);
        const transferSeconds =
          this.#options.prefillRatio * ((batch.rows[index] as EpisodeRow).prompt.tokens.length + generatedTokens);
        this.#obey(router.turnEnded(index, attempt, { remainingTokens, generatedTokens, transferSeconds }));
        return;
      }
      case "answered": {
        const { toolSeconds, hasToolFailed, hasLeft } = message;
        const [from, to] = state.answers.at(-1) ?? [0, 0];
        // The order knows of a turn that is done again.
        if (state.tokens.length > order.numTokens(index))
          order.toolEnded(index, { toolSeconds, hasToolFailed, observedTokens: to - from });
        states[index] = state;
        if (hasLeft) this.#obey(router.left(index, attempt, order.priority(index)));
        else router.goesOn(index, attempt);
        return;
      }
      case "ended": {
        const { isFirst, orders } = router.ended(index, attempt);
        if (isFirst) {
          const { finishReason, policyVersion } = message;
          const whole = { ...completion, finishReason, policyVersion };
          order.ended(index, whole);
          batch.ended(index, whole, state.answers);
        }
        this.#obey(orders);
        if (router.isOver) batch.over();
      }
    }
  }

  #obey(orders: readonly RouterOrder[]): void {
    const batch = this.#batch;
    if (!batch) return;
    const { rank: own } = this.#options;
    for (const { type, episode: index, rank, attempt } of orders) {
      const episode = batch.base + index;
      if (type === "leave") {
        if (rank === own) this.#host.leave(own, episode, attempt);
        else this.#exchange.say(rank, { type: "leave", episode, attempt });
        continue;
      }
      const { prompt, key, name: stem } = batch.rows[index] as EpisodeRow;
      const state = batch.states[index];
      // What a tool may still hold under another owner's name, or one that was lost, is not this attempt's.
      const name = `${stem}~${this.#exchange.nonce}~${batch.losses[index]}`;
      const { order } = batch;
      const to = { episode, attempt, name, prompt: prompt.tokens, key, state };
      if (rank === own) this.#run({ ...to, owner: own, priority: () => order.priority(index) });
      else this.#exchange.say(rank, { type: "run", ...to, priority: order.priority(index) });
    }
  }
}

const attemptOf = ({ episode, attempt }: HostedEpisode) => ({ episode, attempt });
