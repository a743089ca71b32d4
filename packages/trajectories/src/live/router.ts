/**
 * Where each episode of a batch is, and what it waits for: a pure state machine. Whoever drives it says what episodes and
 * ranks do, and carries out its orders; it knows no clock, no link and no engine. The live shell (`SharedRollout` of
 * `@treadle/workers`) and the simulated rollout (`runEvents`) drive the same one. Where an episode goes is decided by the
 * `PlacementPolicy` that it is given.
 *
 * An episode is `absent` until it is offered, waits for a `place`, is at `decode`, waits for a `tool`, and is `over` in the end.
 * From its order to run on, it has one home and one attempt there.
 *
 * - ER1 an episode has at most one home: it is ordered to run again only after that attempt has left, or its rank is down
 * - ER2 every order to run has a new attempt; what is said of any other attempt changes nothing
 * - ER3 an episode ends once, and only what is over is run no more: whatever ranks die, it waits for a place again
 * - ER4 none is ordered to a rank that has no room, as far as is known, but those which come back from a tool, which wait for none, and
 *   none to a rank that is down
 * - ER5 where a rank has room, as far as is known, nothing waits that may run there: those that are placed there go first, then,
 *   where waiting episodes are shared, the first of those that wait for other ranks, but not while a batch is first placed: what is placed then
 *   is placed as was meant, and a rank that has room later makes good what was predicted wrongly, or what came late
 */
import { nowhere } from "../rollout/migration.ts";
import type { PlacementPolicy, Prediction } from "../rollout/placement.ts";
import type { WorkerLoads } from "../rollout/worker-loads.ts";

export type EpisodePhase = "absent" | "place" | "decode" | "tool" | "over";

/**
 * `run`: begin or go on there, under this attempt. `leave`: go on no more at that rank, once the tool has answered, but at
 * `target`, as was decided.
 */
export type RouterOrder = { readonly episode: number; readonly rank: number; readonly attempt: number } & (
  | { readonly type: "run" }
  | { readonly type: "leave"; readonly target: number }
);

export type RouterOptions = {
  readonly numEpisodes: number;
  readonly policy: PlacementPolicy;
  /** of the ranks, which the policy reads, too; kept here */
  readonly loads: WorkerLoads;
  /** episodes that a rank may have at its engine, those that wait for a tool not counted; default: any number */
  readonly room?: ((rank: number) => number) | undefined;
  /** the same, of a rank that takes what waits for another one; default: none does */
  readonly sharedRoom?: ((rank: number) => number) | undefined;
};

type Episode = {
  phase: EpisodePhase;
  home: number;
  attempt: number;
  /** where it shall go on; its home unless it was asked to leave */
  target: number;
  priority: number;
};

export class EpisodeRouter {
  readonly #episodes: Episode[];
  readonly #policy: PlacementPolicy;
  readonly #loads: WorkerLoads;
  readonly #room: (rank: number) => number;
  readonly #sharedRoom: ((rank: number) => number) | undefined;
  readonly #isUp: boolean[];
  /** of this batch, queued or at decode, by rank */
  readonly #active: number[];
  /** of other batches */
  readonly #others: number[];
  /** those that go first stand first */
  readonly #waiting: number[] = [];
  #numOpen: number;
  #numMoves = 0;

  constructor({ numEpisodes, policy, loads, room = () => Number.POSITIVE_INFINITY, sharedRoom }: RouterOptions) {
    this.#policy = policy;
    this.#loads = loads;
    this.#room = room;
    this.#sharedRoom = sharedRoom;
    this.#isUp = new Array<boolean>(loads.numWorkers).fill(true);
    this.#active = new Array<number>(loads.numWorkers).fill(0);
    this.#others = new Array<number>(loads.numWorkers).fill(0);
    this.#numOpen = numEpisodes;
    this.#episodes = Array.from({ length: numEpisodes }, () => ({
      phase: "absent",
      home: nowhere,
      attempt: 0,
      target: nowhere,
      priority: 0,
    }));
  }

  get isOver(): boolean {
    return this.#numOpen === 0;
  }

  /** Episodes that went on at another rank than before. */
  get numMoves(): number {
    return this.#numMoves;
  }

  /** Episodes that a rank has at its engine, as far as is known: of this batch, and of others. */
  loadOf(rank: number): number {
    return this.#active[rank]! + this.#others[rank]!;
  }

  /** Of this batch, as far as is known. */
  ownLoadOf(rank: number): number {
    return this.#active[rank]!;
  }

  /** Episodes that wait for a place. */
  get numWaiting(): number {
    return this.#waiting.length;
  }

  /** The highest priority of those; undefined where none waits. */
  get firstPriority(): number | undefined {
    const [first] = this.#waiting;
    return first === undefined ? undefined : this.#of(first).priority;
  }

  homeOf(episode: number): number {
    return this.#of(episode).home;
  }

  phaseOf(episode: number): EpisodePhase {
    return this.#of(episode).phase;
  }

  /** ER2: whether this is what the episode does now. */
  isCurrent(episode: number, attempt: number): boolean {
    const { phase, attempt: current } = this.#of(episode);
    return attempt === current && (phase === "decode" || phase === "tool");
  }

  /** The episode waits for a place; higher priorities go first, equal ones by index. */
  offer(episode: number, priority = 0): readonly RouterOrder[] {
    const one = this.#of(episode);
    if (one.phase !== "absent") return [];
    this.#wait(episode, priority);
    return this.#dispatch();
  }

  /** All of a batch at once, so that the highest priorities go first. */
  offerAll(priorities: readonly number[]): readonly RouterOrder[] {
    for (const [episode, priority] of priorities.entries()) {
      const one = this.#of(episode);
      if (one.phase !== "absent") continue;
      one.phase = "place";
      one.priority = priority;
      this.#waiting.push(episode);
    }
    this.#waiting.sort((a, b) => this.#before(a, b));
    return this.#dispatchPlaced(Number.POSITIVE_INFINITY);
  }

  /** It called a tool. Without a prediction it stays. */
  turnEnded(episode: number, attempt: number, prediction?: Prediction): readonly RouterOrder[] {
    const one = this.#of(episode);
    if (!this.isCurrent(episode, attempt) || one.phase !== "decode") return []; // ER2
    one.phase = "tool";
    this.#count(one.home, -1);
    one.target = one.home;
    if (prediction) {
      const target = this.#policy.worksOnAt(episode, one.home, prediction);
      if (target !== one.home && this.#isUp[target]) this.#aim(episode, target);
    }
    const orders = [...this.#dispatch()];
    if (one.target !== one.home) {
      orders.push({ type: "leave", episode, rank: one.home, attempt, target: one.target });
    }
    return orders;
  }

  /** The tool answered, and the episode goes on where it is, whatever it was asked. */
  goesOn(episode: number, attempt: number): void {
    const one = this.#of(episode);
    if (!this.isCurrent(episode, attempt) || one.phase !== "tool") return;
    one.phase = "decode";
    this.#aim(episode, one.home);
    this.#count(one.home, 1);
  }

  /** The tool answered, and the episode is at its home no more (ER1). */
  left(episode: number, attempt: number, priority = 0): readonly RouterOrder[] {
    const one = this.#of(episode);
    if (!this.isCurrent(episode, attempt) || one.phase !== "tool") return [];
    this.#wait(episode, priority);
    const orders = this.#dispatch();
    // ER4: as those that stay, it takes its turn in the queue of the engine that it goes to. Here it would wait behind all that has
    // not begun: where more wait than there are places, no rank has room before most of the batch has ended.
    const isStuck = this.phaseOf(episode) === "place" && this.#isUp[one.target] === true;
    return isStuck ? [...orders, this.#run(this.#placeOf(episode), one.target)] : orders;
  }

  /** Its rank has given it up, whatever it was at there: it waits for a place (ER1: that attempt has left). */
  gaveUp(episode: number, attempt: number, priority = 0): readonly RouterOrder[] {
    const one = this.#of(episode);
    if (!this.isCurrent(episode, attempt)) return none; // ER2
    if (one.phase === "decode") this.#count(one.home, -1);
    this.#wait(episode, priority);
    return this.#dispatch();
  }

  /** Whether it ended now: of several answers one counts (ER3). */
  ended(episode: number, attempt: number): { readonly isFirst: boolean; readonly orders: readonly RouterOrder[] } {
    const one = this.#of(episode);
    if (!this.isCurrent(episode, attempt)) return { isFirst: false, orders: [] };
    if (one.phase === "decode") this.#count(one.home, -1);
    return this.#over(episode);
  }

  /** It has ended, as others know: whatever it does here counts no more (ER3). Whether that is news. */
  settle(episode: number): { readonly isFirst: boolean; readonly orders: readonly RouterOrder[] } {
    const one = this.#of(episode);
    if (one.phase === "over") return { isFirst: false, orders: none };
    if (one.phase === "decode") this.#count(one.home, -1);
    if (one.phase === "place") this.#waiting.splice(this.#placeOf(episode), 1);
    return this.#over(episode);
  }

  /** ER3. Its episodes wait for another place; `priorityOf` is asked for each. */
  down(rank: number, priorityOf: (episode: number) => number = () => 0): readonly RouterOrder[] {
    if (!this.#isUp[rank]) return [];
    this.#isUp[rank] = false;
    this.others(rank, 0);
    for (const [episode, one] of this.#episodes.entries()) {
      const isThere = one.home === rank && (one.phase === "decode" || one.phase === "tool");
      if (isThere && one.phase === "decode") this.#count(rank, -1);
      if (one.target === rank && one.phase !== "over") this.#aim(episode, one.home);
      if (isThere) this.#wait(episode, priorityOf(episode));
    }
    return this.#dispatch();
  }

  /** Down ranks take nothing, and what waits for them goes elsewhere. */
  up(rank: number): readonly RouterOrder[] {
    this.#isUp[rank] = true;
    return this.#dispatch();
  }

  /** What a rank has of other batches, queued or at decode. */
  others(rank: number, count: number): void {
    this.#loads.add(rank, count - this.#others[rank]!);
    this.#others[rank] = count;
  }

  /** After what the shell alone knows has changed: room. `most`: of what waits, so many. */
  look(most?: number): readonly RouterOrder[] {
    return this.#dispatch(most);
  }

  #of(episode: number): Episode {
    return this.#episodes[episode]!;
  }

  #over(episode: number): { readonly isFirst: true; readonly orders: readonly RouterOrder[] } {
    this.#of(episode).phase = "over";
    this.#numOpen--;
    this.#policy.finished(episode);
    return { isFirst: true, orders: this.#dispatch() };
  }

  #wait(episode: number, priority: number): void {
    const one = this.#of(episode);
    one.phase = "place";
    one.priority = priority;
    this.#waiting.splice(this.#placeOf(episode), 0, episode);
  }

  /** Where it stands among those that wait, or would. */
  #placeOf(episode: number): number {
    let [from, to] = [0, this.#waiting.length];
    while (from < to) {
      const middle = (from + to) >> 1;
      if (this.#before(this.#waiting[middle]!, episode) < 0) from = middle + 1;
      else to = middle;
    }
    return from;
  }

  #count(rank: number, change: number): void {
    this.#active[rank]! += change;
    this.#loads.add(rank, change);
  }

  /** ER4 */
  #hasRoom(rank: number, room = this.#room): boolean {
    return this.#isUp[rank]! && this.loadOf(rank) < room(rank);
  }

  /** ER5 */
  #dispatch(most = Number.POSITIVE_INFINITY): readonly RouterOrder[] {
    const orders = this.#dispatchPlaced(most);
    const room = this.#sharedRoom;
    if (room === undefined) return orders;
    for (let rank = 0; rank < this.#isUp.length; rank++)
      while (this.#waiting.length > 0 && orders.length < most && this.#hasRoom(rank, room))
        orders.push(this.#run(0, rank));
    return orders;
  }

  #dispatchPlaced(most: number): RouterOrder[] {
    const orders: RouterOrder[] = [];
    const isSplit = this.#isUp.includes(false);
    // Thousands may wait: where each would go is not asked while no rank takes any.
    let isAnyFree = this.#hasAnyRoom();
    for (let at = 0; isAnyFree && at < this.#waiting.length && orders.length < most; ) {
      const episode = this.#waiting[at]!;
      const one = this.#of(episode);
      // A home that is down is none.
      const from = one.target !== nowhere && this.#isUp[one.target] ? one.target : nowhere;
      let rank = this.#policy.workerFor(episode, from);
      if (isSplit && !this.#isUp[rank]) rank = this.#leastOfUp();
      if (rank !== nowhere && this.#hasRoom(rank)) {
        orders.push(this.#run(at, rank));
        isAnyFree = this.#hasAnyRoom();
      } else at++;
    }
    return orders;
  }

  #hasAnyRoom(): boolean {
    for (let rank = 0; rank < this.#isUp.length; rank++) if (this.#hasRoom(rank)) return true;
    return false;
  }

  /** That which stands there among those that wait. */
  #run(at: number, rank: number): RouterOrder {
    const [episode] = this.#waiting.splice(at, 1) as [number];
    const one = this.#of(episode);
    if (one.home !== nowhere && one.home !== rank) this.#numMoves++;
    one.phase = "decode";
    one.home = rank;
    one.attempt++; // ER2
    this.#aim(episode, rank);
    this.#count(rank, 1);
    return { type: "run", episode, rank, attempt: one.attempt };
  }

  #aim(episode: number, rank: number): void {
    const one = this.#of(episode);
    if (one.target === rank) return;
    one.target = rank;
    if (rank !== nowhere) this.#policy.moved(episode, rank);
  }

  #leastOfUp(): number {
    let least = nowhere;
    for (let rank = 0; rank < this.#isUp.length; rank++) {
      if (!this.#isUp[rank]) continue;
      if (least === nowhere || this.loadOf(rank) < this.loadOf(least)) least = rank;
    }
    return least;
  }

  #before(a: number, b: number): number {
    return this.#of(b).priority - this.#of(a).priority || a - b;
  }
}

const none: readonly RouterOrder[] = [];
