/**
 * Where the episodes of a rank begin and go on, among those of all ranks of its group: pure. Ranks tell each other what they
 * predict for each unfinished episode of theirs, and where it is or shall begin; each decides over all that it knows, by the
 * decision that a simulated rollout makes (`UnfinishedGroups`), and moves its own alone.
 *
 * - UG1 an episode is placed by its owner alone; what is known of others decides where, and never whether, it runs
 * - UG2 ranks that know the same place alike, whatever came first: of equal predictions the number goes first, then the owner
 * - UG3 what a rank has told counts until it says otherwise or is down; of what it had before it went down nothing counts
 * - UG4 what is heard is bounded: no more is kept of a rank than `mostKnown` episodes, and a home that is no rank is none
 * - UG5 ranks place by the same interference, the same error of predictions and the same limit: what each has measured, and what
 *   its episodes may come to, it tells with them, and of all that ranks which are up have told, the middle slope, the mean log-sd
 *   and the largest limit count
 * - UG6 a rank has told of its episodes once it has told of all: of more than one message holds, the rest follows
 */
import { TreadleError } from "@treadle/contracts";
import { type Interference, interferenceFactor, neverDecreases } from "../interference.ts";
import { fastestFirst, scheduledEstimate } from "../rollout/groups.ts";
import { type Grouping, type MigrationRule, nowhere, UnfinishedGroups } from "../rollout/migration.ts";
import type { PlacementPolicy } from "../rollout/placement.ts";
import type { WorkerLoads } from "../rollout/worker-loads.ts";

/** Where episodes begin: at the rank that took their prompt, wherever least is queued, or in groups by predicted length. */
export const livePlacements = ["own", "least-load", "predicted"] as const;
export type LivePlacement = (typeof livePlacements)[number];

/** When an episode goes on at another rank after a turn: never, or by a rule. */
export const liveMigrations = ["never", "scaled", "anew", "pays"] as const satisfies readonly (
  | "never"
  | MigrationRule
)[];
export type LiveMigration = (typeof liveMigrations)[number];

export type GroupPlacementOptions = {
  readonly placement: LivePlacement;
  readonly migrate: LiveMigration;
  readonly own: number;
  readonly numRanks: number;
  /** what is told of that own episode is another, or it has ended */
  readonly changed?: ((episode: number) => void) | undefined;
};

/** What groups are made by from a batch on. */
export type GroupConditions = {
  /** of each rank: seconds that a token takes alone; ranks count as equal unless that is known of all that are up */
  readonly tokenTimes?: readonly (number | undefined)[] | undefined;
  /** of this rank's predictions: the noise-aware factor takes half of what it comes to over all ranks (UG5) */
  readonly logSd: number;
  /** until any rank has measured it; must never fall */
  readonly F: Interference;
  /** by this rank (UG5) */
  readonly measured?: Interference | undefined;
  /** episodes that a rank computes at once */
  readonly places: number;
  /** that one of this rank's episodes may come to (PG4, UG5) */
  readonly mostTokens?: number | undefined;
};

/** Of one rank's episodes, by its numbers. */
export type ToldEpisodes = {
  readonly episodes: Int32Array;
  /** that each will have generated in the end, as predicted */
  readonly tokens: Float64Array;
  /** of these, what each has still to come: what a queue lasts by */
  readonly remaining: Float64Array;
  /** where each is, or shall begin or go on; -1 where that is not decided */
  readonly homes: Int32Array;
  /** that are unfinished no more */
  readonly ended: Int32Array;
  /** UG5; absent before it has predicted anything */
  readonly measured?: ToldMeasures | undefined;
};

/** What a rank has measured, and knows of its own limits. */
type ToldMeasures = {
  readonly logSd: number;
  /** of an affine interference; absent before enough of it was seen */
  readonly slope?: number | undefined;
  /** absent where nothing limits an episode */
  readonly mostTokens?: number | undefined;
};

/** Of episodes in one message. */
export const mostTold = 4096;
const mostKnown = 65_536;

type Known = { readonly owner: number; readonly episode: number; tokens: number; remaining: number; home: number };

export class GroupPlacement {
  readonly #options: GroupPlacementOptions;
  readonly #isUp: boolean[];
  #conditions: GroupConditions = { logSd: 0, F: { type: "affine", slope: 0 }, places: 1 };
  readonly #groups: UnfinishedGroups | undefined;
  /** by slot, as the groups know them */
  readonly #known: (Known | undefined)[] = [];
  readonly #free: number[] = [];
  /** of each rank: slots by its numbers */
  readonly #slots: readonly Map<number, number>[];
  /** UG5: of each rank */
  readonly #measures: (ToldMeasures | undefined)[];

  /** Throws `problem.invalid` for rules that do not go together. */
  constructor(options: GroupPlacementOptions) {
    const { placement, migrate, own, numRanks } = options;
    if (migrate === "scaled" && placement !== "predicted") {
      throw new TreadleError(
        "problem.invalid",
        `migration is 'scaled' where placement is '${placement}': it scales groups, which 'predicted' alone makes; choose that, or migrate 'pays'`,
      );
    }
    this.#options = options;
    this.#isUp = Array.from({ length: numRanks }, (_, rank) => rank === own);
    this.#slots = this.#isUp.map(() => new Map());
    this.#measures = this.#isUp.map(() => undefined);
    if (placement !== "predicted" && migrate === "never") return;
    this.#groups = new UnfinishedGroups(migrate === "never" ? "anew" : migrate, this.#grouping());
  }

  /** Throws `problem.invalid` for an F that falls. */
  set conditions(conditions: GroupConditions) {
    if (this.#groups && !neverDecreases(conditions.F)) {
      throw new TreadleError(
        "problem.invalid",
        "placement in groups needs an interference factor that never falls; raise later values of its table",
      );
    }
    this.#conditions = conditions;
    const { logSd, measured, mostTokens } = conditions;
    const slope = measured?.type === "affine" ? measured.slope : undefined;
    this.#measures[this.#options.own] = { logSd, slope, mostTokens };
    this.#regroup();
  }

  up(rank: number): void {
    this.#isUp[rank] = true;
    this.#regroup();
  }

  /** UG3 */
  down(rank: number): void {
    this.#isUp[rank] = false;
    this.#measures[rank] = undefined;
    for (const episode of [...this.#slots[rank]!.keys()]) this.#forget(rank, episode);
    const wereThere = [...this.#known.entries()].filter(([, known]) => known?.home === rank);
    for (const [slot, known] of wereThere) this.#move(known!, slot, nowhere);
    this.#regroup();
    if (this.#options.placement === "predicted") for (const [slot, known] of wereThere) this.#place(known!, slot);
  }

  /**
   * Own episodes that wait to be placed: as many tokens as each is predicted to come to. Where they begin at this rank anyway,
   * they are of its company as soon as they wait for it.
   */
  begin(base: number, predictions: readonly number[]): void {
    if (!this.#groups) return;
    const { own, placement } = this.#options;
    for (const [index, tokens] of predictions.entries()) {
      this.#keep(own, base + index, { tokens, remaining: tokens }, placement === "own" ? own : nowhere);
      this.#options.changed?.(base + index);
    }
  }

  /** Where those without a home shall begin: own ones, and, as their owners will say, those of others. */
  place(): void {
    if (this.#options.placement !== "predicted") return;
    for (const [slot, known] of this.#known.entries()) if (known?.home === nowhere) this.#place(known, slot);
  }

  /** Of own episodes from that number on. UG1 */
  policy(base: number, loads: WorkerLoads): PlacementPolicy {
    const { placement, migrate, own } = this.#options;
    const groups = this.#groups;
    const workerFor = (index: number, home: number): number => {
      if (home !== nowhere) return home;
      if (placement === "least-load") return loads.leastLoaded;
      return placement === "own" ? own : this.#homeOf(base + index);
    };
    const still = { workerFor, groupSizes: null, moved: () => {}, finished: () => {} };
    if (!groups) return { ...still, worksOnAt: (_, home) => home };
    const slotOf = (index: number): number => this.#slots[own]!.get(base + index)!;
    return {
      ...still,
      worksOnAt: (index, home, { remainingTokens, generatedTokens, transferSeconds }) => {
        const tokens = remainingTokens + generatedTokens;
        this.#keep(own, base + index, { tokens, remaining: remainingTokens }, home);
        this.#options.changed?.(base + index);
        if (migrate === "never") return home;
        return groups.target(slotOf(index), { home, remainingTokens, transferSeconds });
      },
      moved: (index, home) => this.#moveOwn(slotOf(index), home),
      finished: (index) => {
        this.#forget(own, base + index);
        this.#options.changed?.(base + index);
      },
    };
  }

  /** UG3, UG4 */
  hear(owner: number, { episodes, tokens, remaining, homes, ended, measured }: ToldEpisodes): void {
    if (!this.#groups || !this.#isUp[owner] || owner === this.#options.own) return; // UG1
    const before = this.#measures[owner];
    const isNew = (["logSd", "slope", "mostTokens"] as const).some((each) => measured?.[each] !== before?.[each]);
    if (measured && isNew) {
      this.#measures[owner] = measured;
      this.#regroup();
    }
    for (const episode of ended) this.#forget(owner, episode);
    const slots = this.#slots[owner]!;
    for (const [at, episode] of episodes.entries()) {
      if (slots.size >= mostKnown && !slots.has(episode)) continue;
      const home = homes[at]! < this.#isUp.length ? homes[at]! : nowhere;
      this.#keep(owner, episode, { tokens: tokens[at]!, remaining: remaining[at]! }, home);
    }
  }

  /** Own unfinished episodes. */
  get episodes(): Iterable<number> {
    return this.#slots[this.#options.own]!.keys();
  }

  /** Episodes of all ranks. */
  get numKnown(): number {
    return this.#known.length - this.#free.length;
  }

  /** What others are told of these own episodes. */
  tell(episodes: readonly number[]): ToldEpisodes {
    const own = this.#slots[this.#options.own]!;
    const known = episodes.flatMap((episode) => this.#known[own.get(episode) ?? -1] ?? []);
    return {
      episodes: Int32Array.from(known, ({ episode }) => episode),
      tokens: Float64Array.from(known, (each) => each.tokens),
      remaining: Float64Array.from(known, (each) => each.remaining),
      homes: Int32Array.from(known, ({ home }) => home),
      ended: Int32Array.from(episodes.filter((episode) => !own.has(episode))),
      measured: this.#measures[this.#options.own],
    };
  }

  #homeOf(episode: number): number {
    return this.#known[this.#slots[this.#options.own]!.get(episode) ?? -1]?.home ?? nowhere;
  }

  #keep(
    owner: number,
    episode: number,
    { tokens, remaining }: Pick<Known, "tokens" | "remaining">,
    home: number,
  ): void {
    const slots = this.#slots[owner]!;
    const slot = slots.get(episode) ?? this.#free.pop() ?? this.#known.length;
    const known = this.#known[slot];
    const tie = episode * this.#isUp.length + owner; // UG2
    if (known === undefined) {
      slots.set(episode, slot);
      this.#known[slot] = { owner, episode, tokens, remaining, home };
      this.#groups!.add(slot, tokens, home, tie, remaining);
      return;
    }
    if (known.tokens !== tokens || known.remaining !== remaining)
      this.#groups!.predicted(slot, { rankedTokens: tokens, remainingTokens: remaining }, tie);
    known.tokens = tokens;
    known.remaining = remaining;
    this.#move(known, slot, home);
  }

  #forget(owner: number, episode: number): void {
    const slots = this.#slots[owner]!;
    const slot = slots.get(episode);
    if (slot === undefined) return;
    this.#groups!.finished(slot);
    this.#known[slot] = undefined;
    this.#free.push(slot);
    slots.delete(episode);
  }

  #moveOwn(slot: number, home: number): void {
    const known = this.#known[slot]!;
    if (known.home === home) return;
    this.#move(known, slot, home);
    this.#options.changed?.(known.episode);
  }

  #place(known: Known, slot: number): void {
    this.#move(known, slot, this.#groups!.workerOf(slot));
    if (known.owner === this.#options.own) this.#options.changed?.(known.episode);
  }

  #move(known: Known, slot: number, home: number): void {
    if (known.home === home) return;
    known.home = home;
    this.#groups!.moved(slot, home);
  }

  #regroup(): void {
    if (this.#groups) this.#groups.grouping = this.#grouping();
  }

  /** Time is counted in tokens alone at the slowest rank. */
  #grouping(): Grouping {
    const { places } = this.#conditions;
    const { logSd, F, mostTokens } = this.#combined();
    const tokenTimes = this.#relativeTimes();
    const factor = interferenceFactor(F);
    return {
      workers: fastestFirst(tokenTimes).filter((rank) => this.#isUp[rank]),
      tokenTimes,
      factor,
      places,
      estimate: scheduledEstimate(factor, places, logSd / 2, mostTokens),
    };
  }

  /** UG5 */
  #combined(): Pick<GroupConditions, "logSd" | "F" | "mostTokens"> {
    const told = this.#measures.flatMap((each) => each ?? []);
    const slopes = told.flatMap(({ slope }) => slope ?? []).sort((a, b) => a - b);
    const slope = slopes[Math.floor(slopes.length / 2)];
    // Summed in an order that does not depend on who heard whom first.
    const logSd = told.reduce((sum, each) => sum + each.logSd, 0) / Math.max(1, told.length);
    // Who tells of no limit has none.
    const limits = told.map((each) => each.mostTokens ?? Number.POSITIVE_INFINITY);
    const mostTokens = limits.length === 0 ? undefined : Math.max(...limits);
    return { logSd, F: slope === undefined ? this.#conditions.F : { type: "affine", slope }, mostTokens };
  }

  #relativeTimes(): number[] {
    const { tokenTimes = [] } = this.#conditions;
    const known = tokenTimes.filter((seconds, rank) => seconds !== undefined && this.#isUp[rank]) as number[];
    const numUp = this.#isUp.filter((isUp) => isUp).length;
    if (known.length < numUp) return this.#isUp.map(() => 1);
    const slowest = Math.max(...known);
    return this.#isUp.map((_, rank) => (tokenTimes[rank] ?? slowest) / slowest);
  }
}
