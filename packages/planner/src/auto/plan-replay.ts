/**
 * What a step of a plan takes, by doing what its ranks, channels, and the device lock do. A schedule's seconds are those of
 * a plan in which every part runs where the schedule has it; ranks however get devices in the order of calls (L2), lend
 * them while they wait, and swap only what has to go (L4). Pure: equal plans draw alike how long their ranks take.
 *
 * It leaves out what the simulation has besides: messages, but for those of a turn, steps that differ as wholes, and the room that
 * items of another step take in a channel.
 */
import { stepTimes } from "../profile/plan-trials.ts";
import type { Flow, Turn } from "./cycle-model.ts";
import { EventTimes } from "./event-times.ts";
import { type DrawnSteps, uniformOf } from "./replayed-draws.ts";
import { type Member, ReplayedLock } from "./replayed-lock.ts";
import { ReplayedStream } from "./replayed-stream.ts";

/** One method of a component, as a step calls it; in the order of calls. */
export type ReplayedCall = {
  readonly component: string;
  /** devices of every rank */
  readonly ranks: readonly (readonly string[])[];
  /** its ranks get their devices together, keep them until all have ended, and take in rounds */
  readonly isGang?: boolean | undefined;
  /** `most`: items of one take of a rank, or its equal share of all; `items`: of a step, over all ranks */
  readonly takes: readonly { readonly channel: string; readonly items: number; readonly most: number | "all" }[];
  readonly puts: readonly { readonly channel: string; readonly items: number; readonly capacity: number }[];
  /** for such a share of the step's items, taken by one rank while the others take theirs */
  readonly secondsOf: (share: number) => number;
  /** a factor on `secondsOf` for one take; `uniform`: what is drawn, from 0 to 1. Absent: 1 */
  readonly stretchOf?: ((share: number, uniform: number) => number) | undefined;
  /** after the last take */
  readonly onceSeconds: number;
  /** of messages, before the first take */
  readonly turnSeconds: number;
  /** absent: what a take brought is put when all of it is done */
  readonly streamed?: StreamedCall | undefined;
  readonly cycle?: ReplayedCycle | undefined;
};

/** Of a member of a cycle: what it takes from others comes before its turns, and what it puts for others after them. */
export type ReplayedCycle = {
  readonly channels: ReadonlySet<string>;
  /** by rank */
  readonly turns: readonly (readonly Turn[])[];
  /** of work on an item of a channel that a rank takes */
  readonly secondsPerItem: (channel: string) => number;
};

/** Of a call whose items go on one by one. */
export type StreamedCall = {
  /** items that are put at a time */
  readonly piece: number;
  /** of what a take has brought: the items over which its work is spread, of which it may be a part, and seconds of work until such a part of them has gone on */
  readonly ofTake: (taken: number) => { readonly items: number; readonly secondsUntil: (part: number) => number };
};

export type ReplayedWorker = {
  /** on each of its devices */
  readonly bytes: number;
  readonly onloadSeconds: number;
  readonly offloadSeconds: number;
  /** of these, what leaves and comes back by itself; the rest stays from the first load on */
  readonly parts?: readonly Omit<ReplayedWorker, "parts">[] | undefined;
};

export type Replay = {
  readonly calls: readonly ReplayedCall[];
  /** where steps overlap, what is then a part of it */
  readonly overlap?: Overlap | undefined;
  /** by component */
  readonly workers: ReadonlyMap<string, ReplayedWorker>;
  /** bytes by device */
  readonly memory: ReadonlyMap<string, number>;
};

export type Overlap = {
  /** above 0: so many steps may be under way before the last one has ended, and one more */
  readonly maxStaleness: number;
  /** of the runner, before a step's first call */
  readonly overheadSeconds: number;
  /** those that use no channel: the step waits for them before it makes the others, and they for the calls of earlier steps */
  readonly serial: readonly Pick<ReplayedCall, "component" | "ranks" | "isGang" | "onceSeconds">[];
};

/** What the first steps find loaded is not what the others do. */
const firstSteps = 2;
/** What one step leaves loaded may make the next another, and so in turn. */
const countedSteps = 2;
/** Where ranks differ, so do steps, and several are counted. A step of many ranks takes long to replay, and differs less from others. */
const fewRanks = 48;
const drawnStepsOf = (calls: readonly ReplayedCall[]): DrawnSteps =>
  calls.reduce((sum, { ranks }) => sum + ranks.length, 0) > fewRanks ? 3 : 7;

/** What keeps devices busy for a while, in seconds from the beginning of its step. */
export type ReplayedStretch = {
  readonly component: string;
  readonly devices: readonly string[];
  readonly kind: "run" | "swap";
  readonly startSeconds: number;
  readonly endSeconds: number;
};

/** `seconds`: of a step that is not among the first; `stretches`: of the last one, which takes `lastSeconds` from the end of the one before, with what passes of others beside it. */
export type ReplayedStep = {
  readonly seconds: number;
  /** standard deviation of the logarithm of what steps take; 0 where none was drawn */
  readonly deviation: number;
  readonly lastSeconds: number;
  readonly stretches: readonly ReplayedStretch[];
};

export const replaySeconds = (replay: Replay): number | undefined => replayStep(replay)?.seconds;

/** Undefined where a step comes to a standstill. */
export function replayStep(replay: Replay): ReplayedStep | undefined {
  const { calls, workers, memory, overlap } = replay;
  if (overlap !== undefined && overlap.maxStaleness > 0) return replayOverlap(replay, overlap);
  const times = new EventTimes();
  let stretches: ReplayedStretch[] = [];
  let stepFrom = 0;
  const busy: Busy = (component, devices, kind, seconds) => {
    if (seconds <= 0) return;
    const startSeconds = times.now - stepFrom;
    stretches.push({ component, devices, kind, startSeconds, endSeconds: startSeconds + seconds });
  };
  const lock = new ReplayedLock(calls, workers, memory, times, busy);
  // Where nothing ever has to leave, each step is the first.
  const isDrawn = calls.some(({ stretchOf }) => stretchOf !== undefined);
  const numFirst = lock.isShort ? firstSteps : 0;
  const drawnSteps = drawnStepsOf(calls);
  const numCounted = isDrawn ? drawnSteps : lock.isShort ? countedSteps : 1;
  const ends: number[] = [];
  for (let step = 0; step < numFirst + numCounted; step++) {
    if (step === numFirst) ends.push(times.now);
    stepFrom = times.now;
    stretches = [];
    const streams = streamsOf(calls);
    let left = 0;
    for (const [sequence, call] of calls.entries()) {
      for (const rank of call.ranks.keys()) {
        left++;
        const member = lock.open(sequence, rank);
        const uniform = (take: number): number => uniformOf(step, drawnSteps, sequence, rank, take);
        runRank({ call, member, rank, streams, lock, times, busy, uniform }, () => {
          left--;
        });
      }
    }
    while (lock.settle() || times.runNext() || lock.goOnWithoutOthers());
    if (left > 0) return undefined;
    lock.endStep();
    if (step >= numFirst) ends.push(times.now);
  }
  return {
    seconds: (times.now - ends[0]!) / numCounted,
    deviation: isDrawn ? deviationOf(ends) : 0,
    lastSeconds: times.now - stepFrom,
    stretches,
  };
}

function deviationOf(ends: readonly number[]): number {
  const steps = ends.slice(1).map((end, i) => end - ends[i]!);
  return steps.every((seconds) => seconds > 0) ? stepTimes(steps).deviation : 0;
}

/**
 * Steps of which several are under way. A step begins once at most `maxStaleness` before it have not ended, and once the one before has
 * made its calls (W2). A rank's calls follow one another.
 */
function replayOverlap({ calls, workers, memory }: Replay, overlap: Overlap): ReplayedStep | undefined {
  const { maxStaleness, overheadSeconds } = overlap;
  const times = new EventTimes();
  const stretches: ReplayedStretch[] = [];
  const busy: Busy = (component, devices, kind, seconds) => {
    if (seconds > 0)
      stretches.push({ component, devices, kind, startSeconds: times.now, endSeconds: times.now + seconds });
  };
  const serial = overlap.serial.map(serialCall);
  const all = [...serial, ...calls];
  const lock = new ReplayedLock(all, workers, memory, times, busy);
  const numFirst = firstSteps + maxStaleness;
  const drawnSteps = drawnStepsOf(calls);
  const isDrawn = calls.some(({ stretchOf }) => stretchOf !== undefined);
  const last = numFirst + Math.max(2 * countedSteps, maxStaleness + 1, isDrawn ? 2 * drawnSteps : 0);
  const turns = new Map<string, Turns>();
  /** by step: of its calls that were made */
  const left: number[] = [];
  const hasMadeCalls: boolean[] = [];
  const endedAt: number[] = [];
  const make = (step: number, some: readonly ReplayedCall[], from: number, onAllEnded: () => void): void => {
    const streams = streamsOf(some);
    let open = some.reduce((sum, { ranks }) => sum + ranks.length, 0);
    left[step] = (left[step] ?? 0) + open;
    if (open === 0) onAllEnded();
    for (const [at, call] of some.entries()) {
      for (const rank of call.ranks.keys()) {
        const name = `${call.component}/${rank}`;
        const own = turns.get(name) ?? new Turns();
        turns.set(name, own);
        const member = lock.open(step * all.length + from + at, rank);
        const uniform = (take: number): number => uniformOf(step, drawnSteps, at, rank, take);
        own.take((onEnd) =>
          runRank({ call, member, rank, streams, lock, times, busy, uniform }, () => {
            open--;
            left[step]!--;
            if (open === 0) onAllEnded();
            endSteps();
            onEnd();
          }),
        );
      }
    }
  };
  let next = 0;
  const beginSteps = (): void => {
    const isMakingCalls = next > 0 && !hasMadeCalls[next - 1];
    // Those that follow the last one that counts are under way beside it.
    if (isMakingCalls || next === last + maxStaleness || next - endedAt.length > maxStaleness) return;
    const step = next++;
    times.after(overheadSeconds, () =>
      make(step, serial, 0, () =>
        times.after(0, () => {
          make(step, calls, serial.length, () => {});
          hasMadeCalls[step] = true;
          endSteps();
          beginSteps();
        }),
      ),
    );
  };
  const endSteps = (): void => {
    const before = endedAt.length;
    while (hasMadeCalls[endedAt.length] && left[endedAt.length] === 0) endedAt.push(times.now);
    if (endedAt.length > before) times.after(0, beginSteps);
  };
  beginSteps();
  while (lock.settle() || times.runNext() || lock.goOnWithoutOthers());
  if (endedAt.length < last) return undefined;
  const [before, end] = endedAt.slice(last - 2, last) as [number, number];
  return {
    seconds: (end - endedAt[numFirst - 1]!) / (last - numFirst),
    // Where steps overlap, the one that takes long makes the next ones short.
    deviation: 0,
    lastSeconds: end - before,
    stretches: stretches
      .filter(({ startSeconds, endSeconds }) => endSeconds > before && startSeconds < end)
      .map((stretch) => ({
        ...stretch,
        startSeconds: Math.max(before, stretch.startSeconds) - before,
        endSeconds: Math.min(end, stretch.endSeconds) - before,
      })),
  };
}

/** One after another, in the order in which they were asked for. */
class Turns {
  readonly #waiting: ((onEnd: () => void) => void)[] = [];
  #isTaken = false;

  take(begin: (onEnd: () => void) => void): void {
    this.#waiting.push(begin);
    this.#goOn();
  }

  #goOn(): void {
    const [first] = this.#waiting;
    if (this.#isTaken || first === undefined) return;
    this.#waiting.shift();
    this.#isTaken = true;
    first(() => {
      this.#isTaken = false;
      this.#goOn();
    });
  }
}

const serialCall = (call: Overlap["serial"][number]): ReplayedCall => ({
  ...call,
  ...{ takes: [], puts: [], turnSeconds: 0, secondsOf: () => 0 },
});

/** Of one step. */
function streamsOf(calls: readonly ReplayedCall[]): Map<string, ReplayedStream> {
  const streams = new Map<string, ReplayedStream>();
  for (const { takes, puts } of calls)
    for (const { channel, items } of [...takes, ...puts])
      if (!streams.has(channel)) streams.set(channel, new ReplayedStream(items));
  for (const { puts, ranks } of calls)
    for (const { channel, capacity } of puts) streams.get(channel)?.addProducers(ranks.length, capacity);
  for (const { takes, ranks } of calls)
    for (const { channel } of takes) streams.get(channel)?.addConsumers(ranks.length);
  for (const stream of streams.values()) stream.open();
  return streams;
}

type RankRun = {
  readonly call: ReplayedCall;
  readonly member: Member;
  readonly rank: number;
  readonly streams: ReadonlyMap<string, ReplayedStream>;
  readonly lock: ReplayedLock;
  readonly times: EventTimes;
  readonly busy: Busy;
  /** what is drawn for one take of many */
  readonly uniform: (take: number) => number;
};

/** From now on, for so long. */
export type Busy = (
  component: string,
  devices: readonly string[],
  kind: ReplayedStretch["kind"],
  seconds: number,
) => void;

/** Takes from its channels in turn, works on what they brought, and puts, until they have ended. */
function runRank({ call, member, rank, streams, lock, times, busy, uniform }: RankRun, onEnd: () => void): void {
  const compute = (seconds: number, then: () => void): void => {
    busy(call.component, call.ranks[rank]!, "run", seconds);
    times.after(seconds, then);
  };
  const { takes, puts, secondsOf, onceSeconds, turnSeconds, streamed, cycle } = call;
  const streamOf = (channel: string): ReplayedStream => streams.get(channel) as ReplayedStream;
  const total = takes.reduce((sum, { items }) => sum + items, 0);
  const open = new Set(takes);
  let isFirst = true;
  let numTakes = 0;
  /** Of what the call waits for: devices are lent until it is there. */
  const wait = (ask: (then: () => void) => void, then: () => void): void => {
    let isThere = false;
    let hasLent = false;
    ask(() => {
      isThere = true;
      if (hasLent) lock.ask(member, then);
      else then();
    });
    if (isThere) return;
    hasLent = true;
    lock.lend(member);
    lock.settle();
  };
  /** Undefined at the end of the stream. */
  const take = (channel: string, most: number | "all", then: (items: number | undefined) => void): void => {
    const stream = streamOf(channel);
    stream.acknowledge(member);
    let items: number | undefined;
    wait(
      (found) => {
        const onItems = (brought: number | undefined): void => {
          items = brought;
          found();
        };
        if (call.isGang && !cycle) stream.takeInGang(call, call.ranks.length, { by: member, most, onItems });
        else stream.take(member, most, onItems);
      },
      () => then(items),
    );
  };
  const round = (): void => {
    let taken = 0;
    const takeFrom = (left: typeof takes): void => {
      const [first, ...others] = left;
      if (first === undefined) {
        work(taken);
        return;
      }
      take(first.channel, first.most, (items) => {
        taken += items ?? 0;
        if (items === undefined) open.delete(first);
        takeFrom(others);
      });
    };
    takeFrom([...open]);
  };
  const work = (taken: number): void => {
    if (takes.length > 0 ? taken === 0 && open.size === 0 : !isFirst) {
      end();
      return;
    }
    if (taken === 0 && takes.length > 0) {
      round(); // it had nothing of one that its fellow ranks work on
      return;
    }
    // What takes from nowhere makes its part at once.
    const share = takes.length === 0 ? 1 / call.ranks.length : taken / total;
    isFirst = false;
    const stretch = takes.length > 0 ? (call.stretchOf?.(share, uniform(numTakes++)) ?? 1) : 1;
    if (streamed) stream(streamed, taken, stretch);
    else compute(stretch * secondsOf(share), () => put(share, puts, takes.length === 0 ? end : round));
  };
  let done = 0;
  const stream = ({ piece: most, ofTake }: StreamedCall, taken: number, stretch: number): void => {
    const { items, secondsUntil } = ofTake(taken);
    if (items === taken) done = 0;
    const goOn = (left: number): void => {
      const piece = left < 1.5 * most ? left : most;
      compute(stretch * (secondsUntil((done + piece) / items) - secondsUntil(done / items)), () => {
        done += piece;
        put(piece / total, puts, () => {
          if (piece < left) goOn(left - piece);
          else round();
        });
      });
    };
    goOn(taken);
  };
  const putEach = (left: readonly Flow[], then: () => void): void => {
    const [first, ...others] = left;
    if (first === undefined) {
      then();
      return;
    }
    const stream = streamOf(first.channel);
    wait(
      (accepted) => {
        lock.enqueued(member, first.channel); // also while it waits for room: consumers make some
        stream.put(first.items, accepted);
      },
      () => putEach(others, then),
    );
  };
  const put = (share: number, of: typeof puts, then: () => void): void =>
    putEach(
      of.map(({ channel, items }) => ({ channel, items: share * items })),
      then,
    );
  const turnsOfCycle = ({ channels, turns, secondsPerItem }: ReplayedCycle): void => {
    const isOutside = ({ channel }: Flow): boolean => !channels.has(channel);
    const outside = puts.filter(isOutside);
    const begin = (left: typeof takes): void => {
      const [first, ...others] = left;
      if (first === undefined) {
        turn(turns[rank]!);
        return;
      }
      take(first.channel, first.most, (items) => {
        if (items === undefined) begin(others);
        else compute(items * secondsPerItem(first.channel), () => begin(left));
      });
    };
    const turn = (left: readonly Turn[]): void => {
      const [first, ...others] = left;
      if (first === undefined) {
        put(1 / call.ranks.length, outside, end);
        return;
      }
      const answer = (): void => putEach(first.puts, () => turn(others));
      if (first.take === undefined) {
        answer();
        return;
      }
      const { channel, items: most } = first.take;
      take(channel, most, (items = 0) => compute(items * secondsPerItem(channel), answer));
    };
    begin(takes.filter(isOutside));
  };
  const end = (): void => {
    compute(onceSeconds, () =>
      times.atEnd(() => {
        for (const { channel } of takes) streamOf(channel).leave(member);
        for (const { channel } of puts) streamOf(channel).closeProducer();
        lock.close(member);
        lock.settle(); // calls end one after another: whoever can go on with what one has left goes before the next ends
        onEnd();
        lock.settle(); // and so does the rank's next call
      }),
    );
  };
  lock.ask(member, () => times.after(turnSeconds, cycle ? () => turnsOfCycle(cycle) : round));
}
