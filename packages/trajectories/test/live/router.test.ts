import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  GroupPlacement,
  type LiveMigration,
  type LivePlacement,
  liveMigrations,
  livePlacements,
} from "../../src/live/group-placement.ts";
import { EpisodeRouter, type RouterOrder } from "../../src/live/router.ts";
import { WorkerLoads } from "../../src/rollout/worker-loads.ts";

type Given = {
  readonly numRanks: number;
  readonly turns: readonly number[];
  readonly rooms: readonly number[];
  readonly placement: LivePlacement;
  readonly migrate: LiveMigration;
  readonly shares: boolean;
  readonly choices: readonly number[];
};

/** What a rank does with an episode that it was ordered to run, and has not said yet. */
type Run = {
  readonly rank: number;
  readonly episode: number;
  readonly attempt: number;
  turn: number;
  at: "decode" | "tool";
  leaves: boolean;
  /** it came back from a tool to where it is */
  hasReturned: boolean;
};
type Message = {
  readonly type: "turn" | "goes-on" | "left" | "gave-up" | "ended";
  readonly episode: number;
  readonly attempt: number;
  readonly turn: number;
};

/** Ranks that obey, messages that overtake each other between episodes, and deaths, true ones and false ones. */
class World {
  readonly router: EpisodeRouter;
  readonly runs: Run[] = [];
  readonly messages: Message[] = [];
  readonly endedBy = new Map<number, number>();
  /** turns of each episode that the owner knows to be finished */
  readonly known: number[];
  readonly isUp: boolean[];
  /** episodes of other batches at each rank */
  readonly others: number[];
  readonly given: Given;
  numRuns = 0;
  readonly group: GroupPlacement;

  constructor(given: Given) {
    this.given = given;
    const { numRanks, turns, rooms, placement, migrate, shares } = given;
    const loads = new WorkerLoads(numRanks);
    this.group = new GroupPlacement({
      ...{ placement, own: 0, numRanks },
      migrate: migrate === "scaled" && placement !== "predicted" ? "pays" : migrate,
    });
    for (let rank = 0; rank < numRanks; rank++) this.group.up(rank);
    this.group.conditions = { logSd: 0.4, F: { type: "affine", slope: 0.1 }, places: 2 };
    this.group.begin(
      0,
      turns.map((count) => 10 * count),
    );
    this.group.place();
    const policy = this.group.policy(0, loads);
    const room = (rank: number): number => rooms[rank]!;
    this.router = new EpisodeRouter({
      ...{ numEpisodes: turns.length, policy, loads, room },
      sharedRoom: shares ? room : undefined,
    });
    this.known = turns.map(() => 0);
    this.isUp = new Array<boolean>(numRanks).fill(true);
    this.others = new Array<number>(numRanks).fill(0);
  }

  /** `returned`: the one that came back from a tool. */
  obey(orders: readonly RouterOrder[], returned?: number): void {
    for (const { type, episode, rank, attempt } of orders) {
      if (type === "leave") {
        for (const run of this.runs) if (run.episode === episode && run.attempt === attempt) run.leaves = true;
        continue;
      }
      this.numRuns++;
      expect(this.isUp[rank], "ER4: down ranks take nothing").toBe(true);
      expect(this.endedBy.has(episode), "ER3: what is over is not run").toBe(false);
      const living = this.runs.filter((run) => run.episode === episode && this.isUp[run.rank]);
      // An attempt that ended or left without being heard of yet is not among the runs, and its rank is up: nothing may start.
      expect(living, `ER1: episode '${episode}' runs at one rank`).toEqual([]);
      expect(
        this.runs.every((run) => run.episode !== episode || run.attempt < attempt),
        "ER2: attempts are new",
      ).toBe(true);
      const turn = this.known[episode]!;
      // It waits in the queue of the engine that it goes to.
      const hasReturned = episode === returned;
      this.runs.push({ rank, episode, attempt, turn, at: "decode", leaves: false, hasReturned });
      const decoding = this.runs.filter(
        (run) =>
          run.rank === rank &&
          run.at === "decode" &&
          !run.hasReturned &&
          this.router.isCurrent(run.episode, run.attempt),
      ).length;
      if (hasReturned) continue;
      expect(decoding + this.others[rank]!, "ER4: no rank is sent more than it has room for").toBeLessThanOrEqual(
        this.given.rooms[rank]!,
      );
    }
  }

  /** What other batches have at a rank. */
  beside(rank: number, count: number): void {
    if (!this.isUp[rank]) return;
    this.others[rank] = count;
    this.router.others(rank, count);
    this.obey(this.router.look());
  }

  /** A rank computes one of its runs no more, and says so. */
  giveUp(choice: number): void {
    const run = this.runs[choice % Math.max(1, this.runs.length)];
    if (!run) return;
    this.runs.splice(this.runs.indexOf(run), 1);
    this.messages.push({ type: "gave-up", episode: run.episode, attempt: run.attempt, turn: run.turn });
  }

  /** A rank gets on with one of its runs. */
  advance(choice: number): void {
    const run = this.runs[choice % Math.max(1, this.runs.length)];
    if (!run) return;
    const { episode, attempt } = run;
    const say = (type: Message["type"]) => this.messages.push({ type, episode, attempt, turn: run.turn });
    if (run.at === "decode") {
      run.turn++;
      if (run.turn === this.given.turns[episode]) {
        this.runs.splice(this.runs.indexOf(run), 1);
        say("ended");
      } else {
        run.at = "tool";
        say("turn");
      }
    } else if (run.leaves) {
      this.runs.splice(this.runs.indexOf(run), 1);
      say("left");
    } else {
      run.at = "decode";
      run.hasReturned = true;
      say("goes-on");
    }
  }

  /** The first message of some attempt arrives: others may overtake it. */
  deliver(choice: number): void {
    const first = this.messages[choice % Math.max(1, this.messages.length)];
    if (!first) return;
    const at = this.messages.findIndex((one) => one.episode === first.episode && one.attempt === first.attempt);
    const [{ type, episode, attempt, turn }] = this.messages.splice(at, 1) as [Message];
    const isCurrent = this.router.isCurrent(episode, attempt);
    if (isCurrent && type !== "ended" && type !== "gave-up") this.known[episode] = turn;
    const left = this.given.turns[episode]! - turn;
    if (type === "turn") {
      const prediction = { remainingTokens: 10 * left, generatedTokens: 10 * turn, transferSeconds: 0.1 };
      this.obey(this.router.turnEnded(episode, attempt, prediction));
    } else if (type === "goes-on") {
      this.router.goesOn(episode, attempt);
    } else if (type === "left") {
      this.obey(this.router.left(episode, attempt, left), episode);
      if (isCurrent)
        expect(this.router.phaseOf(episode), "ER4: what comes back from a tool waits for no room").toBe("decode");
    } else if (type === "gave-up") this.obey(this.router.gaveUp(episode, attempt, left));
    else {
      const { isFirst, orders } = this.router.ended(episode, attempt);
      expect(isFirst, "ER2: only the current attempt ends it").toBe(isCurrent);
      if (isFirst) {
        expect(this.endedBy.has(episode), "ER3: it ends once").toBe(false);
        this.endedBy.set(episode, attempt);
      }
      this.obey(orders);
    }
  }

  /** With `isTrue` it computes no more; otherwise nobody hears that it still does. The first rank is the owner. */
  die(rank: number, isTrue: boolean): void {
    if (rank === 0 || !this.isUp[rank]) return;
    this.isUp[rank] = false;
    this.others[rank] = 0;
    if (isTrue) {
      for (const run of this.runs.filter((one) => one.rank === rank)) this.runs.splice(this.runs.indexOf(run), 1);
    }
    this.obey(this.router.down(rank));
  }

  /** Others know that it has ended. */
  settle(choice: number): void {
    const numEpisodes = this.given.turns.length;
    if (numEpisodes === 0) return;
    const episode = choice % numEpisodes;
    const { isFirst, orders } = this.router.settle(episode);
    expect(isFirst, "ER3: it ends once").toBe(!this.endedBy.has(episode));
    if (isFirst) this.endedBy.set(episode, 0);
    this.obey(orders);
  }

  comeBack(rank: number): void {
    if (this.isUp[rank]) return;
    // The process is a new one, or has been told that it counts no more.
    for (const run of this.runs.filter((one) => one.rank === rank)) this.runs.splice(this.runs.indexOf(run), 1);
    this.isUp[rank] = true;
    this.obey(this.router.up(rank));
  }

  checkRest(): void {
    const { turns, rooms, shares } = this.given;
    for (const [rank, up] of this.isUp.entries()) {
      if (!up || !shares) continue;
      const there = turns.filter(
        (_, episode) => this.router.homeOf(episode) === rank && this.router.phaseOf(episode) === "decode",
      );
      const waiting = turns.filter((_, episode) => this.router.phaseOf(episode) === "place");
      if (there.length + this.others[rank]! < rooms[rank]!)
        expect(waiting, "ER5: nothing waits where a rank has room").toEqual([]);
    }
  }
}

const given: fc.Arbitrary<Given> = fc.integer({ min: 1, max: 4 }).chain((numRanks) =>
  fc.record({
    numRanks: fc.constant(numRanks),
    turns: fc.array(fc.integer({ min: 1, max: 4 }), { maxLength: 10 }),
    rooms: fc.array(fc.integer({ min: 1, max: 3 }), { minLength: numRanks, maxLength: numRanks }),
    placement: fc.constantFrom(...livePlacements),
    migrate: fc.constantFrom(...liveMigrations),
    shares: fc.boolean(),
    choices: fc.array(fc.nat(999), { maxLength: 120 }),
  }),
);

describe("the router of episodes", () => {
  test("UG1, ER1, ER2, ER3, ER4, ER5: whatever others tell, whatever order messages come in, and whatever ranks die, every episode ends once, at one home at a time", () => {
    fc.assert(
      fc.property(given, (all) => {
        const world = new World(all);
        for (const episode of all.turns.keys()) world.obey(world.router.offer(episode, -episode));
        for (const choice of all.choices) {
          const [kind, which] = [choice % 12, Math.floor(choice / 12)];
          if (kind < 5) world.advance(which);
          else if (kind < 8) world.deliver(which);
          else if (kind === 8) world.die(which % all.numRanks, which % 2 === 0);
          else if (kind === 10) {
            world.beside(which % all.numRanks, which % 4);
            // What others tell may be stale, or no more than noise.
            world.group.hear(all.numRanks - 1, {
              episodes: Int32Array.of(which % 7),
              tokens: Float64Array.of(which),
              remaining: Float64Array.of(which),
              homes: Int32Array.of((which % 6) - 1),
              ended: Int32Array.of(which % 3),
            });
          } else if (kind === 11) world.giveUp(which);
          else if (which % 5 === 0) world.settle(Math.floor(which / 5));
          else world.comeBack(which % all.numRanks);
          world.checkRest();
        }
        // From here on everybody works: no episode starves.
        for (let rank = 0; rank < all.numRanks; rank++) {
          world.comeBack(rank);
          world.beside(rank, 0);
        }
        for (let round = 0; !world.router.isOver && round < 2000; round++) {
          world.advance(round);
          world.deliver(round * 7);
          world.checkRest();
        }
        expect(world.router.isOver, "ER3: nothing is lost").toBe(true);
        expect([...world.endedBy.keys()].sort((a, b) => a - b)).toEqual([...all.turns.keys()]);
      }),
      { numRuns: 400 },
    );
  });

  test("ER3: a rank that dies costs its episodes the turn that was under way, and nothing else", () => {
    const world = new World({
      numRanks: 2,
      turns: [3, 3],
      rooms: [1, 1],
      placement: "least-load",
      migrate: "never",
      shares: true,
      choices: [],
    });
    for (const episode of [0, 1]) world.obey(world.router.offer(episode));
    expect(world.runs.map(({ rank }) => rank)).toEqual([0, 1]);
    world.advance(1);
    world.deliver(0);
    world.advance(1);
    world.deliver(0);
    world.die(1, true);
    expect(world.router.phaseOf(1)).toBe("place");
    world.comeBack(1);
    expect(world.runs.find(({ episode }) => episode === 1)).toMatchObject({ rank: 1, attempt: 2, turn: 1 });
  });

  test("ER5: what is placed together is placed as was meant; a rank that has room later takes what waits for others", () => {
    const loads = new WorkerLoads(3);
    // A wrong prediction: all shall go to rank 0.
    const policy = {
      ...{ workerFor: () => 0, worksOnAt: (_: number, home: number) => home, groupSizes: null },
      ...{ moved: () => {}, finished: () => {} },
    };
    const router = new EpisodeRouter({
      ...{ numEpisodes: 8, policy, loads },
      ...{ room: () => 2, sharedRoom: () => 1 },
    });
    router.down(2);
    const ranks = (orders: readonly RouterOrder[]): number[] => orders.map(({ rank }) => rank);
    expect(ranks(router.offerAll(new Array<number>(8).fill(0)))).toEqual([0, 0]);
    expect(ranks(router.look()), "as much of it as it has room for").toEqual([1]);
    expect(ranks(router.up(2)), "one that comes up late").toEqual([2]);
    expect(router.numWaiting).toBe(4);
  });

  test("ER4: one that moves waits for none of those that have not begun, however many there are", () => {
    const loads = new WorkerLoads(2);
    // Those of even numbers begin at rank 0, the others at rank 1, and the first one shall go on there.
    const policy = {
      workerFor: (episode: number, home: number) => (home === -1 ? episode % 2 : home),
      worksOnAt: () => 1,
      ...{ moved: () => {}, finished: () => {}, groupSizes: null },
    };
    const room = () => 2;
    const router = new EpisodeRouter({ numEpisodes: 12, policy, loads, room, sharedRoom: room });
    const first = router.offerAll(Array.from({ length: 12 }, (_, episode) => -episode));
    expect(first.map(({ episode, rank }) => [episode, rank])).toEqual([
      [0, 0],
      [1, 1],
      [2, 0],
      [3, 1],
    ]);
    const toCome = { remainingTokens: 9, generatedTokens: 1, transferSeconds: 0 };
    const [next, leave] = router.turnEnded(0, 1, toCome);
    expect(next, "its place is another's").toMatchObject({ type: "run", episode: 4, rank: 0 });
    expect(leave).toMatchObject({ type: "leave", episode: 0, rank: 0, target: 1 });
    expect(router.left(0, 1, 5)).toEqual([{ type: "run", episode: 0, rank: 1, attempt: 2 }]);
    expect(router.ended(1, 1).orders, "and counts there").toEqual([]);
  });

  test("ER5: with thousands that wait, a place that is free costs a few questions of the policy, and none costs none", () => {
    const loads = new WorkerLoads(2);
    let numAsked = 0;
    const policy = {
      workerFor: () => {
        numAsked++;
        return loads.leastLoaded;
      },
      worksOnAt: (_: number, home: number) => home,
      moved: () => {},
      finished: () => {},
      groupSizes: null,
    };
    const router = new EpisodeRouter({
      ...{ numEpisodes: 6400, policy, loads },
      ...{ room: () => 16, sharedRoom: () => 16 },
    });
    const priorities = Array.from({ length: 6400 }, (_, episode) => (episode * 7919) % 5000);
    const running = [...router.offerAll(priorities)];
    expect(running.map(({ episode }) => priorities[episode])).toEqual(
      [...priorities].sort((a, b) => b - a).slice(0, 32),
    );
    numAsked = 0;
    router.look();
    expect(numAsked).toBe(0);
    for (let ended = 0; ended < 100; ended++) {
      const { episode, attempt } = running.shift()!;
      running.push(...router.ended(episode, attempt).orders);
    }
    expect(running).toHaveLength(32);
    expect(numAsked).toBe(100);
  });
});
