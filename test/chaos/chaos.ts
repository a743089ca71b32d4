/**
 * Strikes what really runs at random for a while, lets it come to rest, and has it judged: every prompt that was put was trained
 * once, in order; each run goes on and ends when asked; no process, lock, file or shared memory is left.
 */
import { setTimeout as delay } from "node:timers/promises";
import { median, type RunEvent } from "@treadle/contracts";
import { randomOf } from "../soak/virtual-network.ts";
import { within } from "./judging.ts";
import { Pauses } from "./pauses.ts";

/** What ends it; undefined when there was nothing to strike. */
export type Strike = () => Promise<(() => Promise<unknown>) | undefined>;

/** `weight`: how often it is drawn */
export type Disaster = { readonly weight: number; readonly strike: Strike };

/** Runs, and all that they need. */
export type Struck = AsyncDisposable & {
  /** those that are possible here */
  readonly disasters: Readonly<Record<string, Disaster>>;
  begin(): void;
  /** prompts of a step of each run */
  readonly batch: number;
  /** that each run has committed */
  readonly steps: readonly number[];
  /** of each run: strikes keep away so much of it that it can make no step */
  readonly standstills: readonly boolean[];
  /** of all runners of all runs */
  readonly events: readonly RunEvent[];
  readonly numRunners: number;
  /** why runners ended that nobody had killed */
  readonly gaveUp: readonly string[];
  /** what runners have said in these last milliseconds */
  saidSince(ms: number): string[];
  /** J1, S4: ends it. Throws what is wrong. */
  judge(): Promise<void>;
};

export type OpenStruck = (random: () => number, log: (text: string) => void) => Promise<Struck>;

export type ChaosOptions = {
  readonly minutes: number;
  readonly seed: number;
  readonly open: OpenStruck;
  readonly log: (text: string) => void;
  /** struck once each, in this order, before any strike is drawn, also where that takes longer than `minutes` */
  readonly first?: readonly string[];
  /** from one strike to the next, at most */
  readonly pauseMs?: number;
  /** ends it early, and everything that it started */
  readonly signal?: AbortSignal;
};

export type ChaosReport = {
  readonly steps: number;
  readonly prompts: number;
  /** by each kind that was possible */
  readonly strikes: Readonly<Record<string, number>>;
  readonly workersReplaced: number;
  readonly runnersStarted: number;
  /** why runners ended that nobody had killed; each was resumed */
  readonly gaveUp: readonly string[];
  /** the longest time without a finished step of a run */
  readonly longestPauseSeconds: number;
  /** the same, less the time for which strikes kept the runner, the pool, every node, or every server away, when nobody can go on */
  readonly longestPause: { readonly seconds: number; readonly strikes: number };
  /** the same, from the last strike before the step */
  readonly longestRecoverySeconds: number;
  /** of workers: seconds from the last sign of life until the successor went on, and where they went */
  readonly recovery: Readonly<Record<"median" | "p90" | "longest", number>> & {
    readonly num: number;
    readonly medianParts: Readonly<Record<string, number>>;
    readonly longestParts: Readonly<Record<string, number>>;
    /** the medians of processes that stood still, and of those whose end was seen */
    readonly medianOfSilent: number;
    readonly medianOfEnded: number;
  };
};

const maxAtOnce = 2;
/** Nothing is struck while no step has finished for so long. */
const patienceMs = 20_000;
const longestMs = 12_000;
/** Worth a line that says what was wrong meanwhile. */
const longPauseMs = 5000;
/** Worth what the runner said meanwhile, too. */
const veryLongPauseMs = 12_000;
const restMs = 300_000;

export async function chaos({
  minutes,
  seed,
  open,
  log,
  first = [],
  pauseMs = 4000,
  signal,
}: ChaosOptions): Promise<ChaosReport> {
  const random = randomOf(seed);
  await using struck = await open(random, log);
  const { disasters } = struck;
  const strange = first.find((kind) => !Object.hasOwn(disasters, kind));
  if (strange !== undefined)
    throw new Error(`nothing is struck by '${strange}' here; there are '${Object.keys(disasters).join("', '")}'`);
  const allSteps = () => struck.steps.reduce((sum, steps) => sum + steps, 0);
  struck.begin();
  const hasBegun = () => {
    if (struck.gaveUp.length > 0) throw new Error(`it gave up before anything was struck: ${struck.gaveUp.join("; ")}`);
    return struck.steps.every((steps) => steps >= 2);
  };
  await within(restMs, "two steps to begin with", hasBegun, signal);

  const strikes = Object.fromEntries(Object.keys(disasters).map((kind) => [kind, 0]));
  const endings = new Set<Promise<void>>();
  const ongoing = new Set<string>();
  const calm = new AbortController();
  /** of each run: one that starves stands still while others go on */
  const pauses = struck.steps.map((steps) => new Pauses(performance.now(), steps));
  const wrong = pauses.map((): string[] => []);
  const watch = () => {
    const { steps, standstills } = struck;
    const nowMs = performance.now();
    for (const [run, each] of pauses.entries()) {
      const look = { nowMs, steps: steps[run]!, isStandstill: standstills[run]! };
      const pause = each.look(look, wrong[run]!.length);
      if (pause === undefined) continue;
      const { ms, countedMs, sinceStruckMs, awayMs } = pause;
      if (countedMs > longPauseMs) {
        const seconds = `${inSeconds(countedMs)} s without one, ${inSeconds(sinceStruckMs)} s of them since the last strike${awayMs > 0 ? ` and ${inSeconds(awayMs)} s in which nobody could make one` : ""}`;
        const ofRun = pauses.length > 1 ? ` of run ${run + 1}` : "";
        log(`before step ${look.steps}${ofRun}: ${seconds}: ${wrong[run]!.join(", ")}`);
        if (countedMs > veryLongPauseMs) for (const line of struck.saidSince(ms)) log(`    ${line}`);
      }
      wrong[run] = [...ongoing];
    }
  };
  const watching = setInterval(watch, 250);
  const quietMs = () => Math.max(...pauses.map((each) => each.quietMs(performance.now())));
  const untilMs = performance.now() + minutes * 60_000;
  const due = [...first];
  try {
    while (performance.now() < untilMs || due.length > 0) {
      signal?.throwIfAborted();
      if (performance.now() > untilMs + restMs) throw new Error(`it could not be struck by '${due.join("', '")}'`);
      await delay(300 + random() * pauseMs);
      // On a slow machine what was struck takes long to start again, and would never get on.
      if (endings.size >= maxAtOnce || quietMs() > patienceMs) continue;
      const kind = due[0] ?? drawDisaster(random, disasters);
      const lastsMs = 200 + random() ** 2 * Math.min(longestMs, minutes * 30_000);
      const end = await disasters[kind]!.strike();
      if (end === undefined) continue;
      due.shift();
      for (const each of pauses) each.strike(performance.now());
      strikes[kind] = (strikes[kind] ?? 0) + 1;
      const what = `${kind} for ${(lastsMs / 1000).toFixed(1)} s`;
      log(`${struck.steps.join(" + ")} steps: ${what}`);
      ongoing.add(what);
      for (const each of wrong) each.push(what);
      const ending = delay(lastsMs, undefined, { signal: calm.signal })
        .catch(() => {})
        .then(() => again(end))
        .finally(() => {
          endings.delete(ending);
          ongoing.delete(what);
        });
      endings.add(ending);
    }
    calm.abort();
    await Promise.all(endings);
    log(`${struck.steps.join(" + ")} steps: nothing is wrong any more`);
    const reached = struck.steps.map((steps) => steps + 2);
    const isReached = () => struck.steps.every((steps, run) => steps >= reached[run]!);
    await within(restMs, `step ${reached.join(" and ")} once nothing is wrong`, isReached, signal);
  } finally {
    clearInterval(watching);
    calm.abort();
    await Promise.allSettled(endings);
  }
  watch();
  const recovery = recoveriesOf(struck.events);
  log(`workers recovered: ${JSON.stringify(recovery)}`); // worth having whatever the judge says
  const { events, numRunners } = struck;
  await struck.judge();
  const steps = allSteps();
  const longest = pauses.map((each) => each.longestCounted).reduce((a, b) => (b.ms > a.ms ? b : a));
  return {
    steps,
    prompts: steps * struck.batch,
    strikes,
    workersReplaced: events.filter(({ type }) => type === "worker-restarted").length,
    runnersStarted: numRunners,
    gaveUp: struck.gaveUp,
    longestPauseSeconds: Math.round(Math.max(...pauses.map((each) => each.longestMs)) / 1000),
    longestPause: { seconds: longest.ms / 1000, strikes: longest.strikes },
    longestRecoverySeconds: Math.max(...pauses.map((each) => each.longestSinceStruckMs)) / 1000,
    recovery,
  };
}

const inSeconds = (ms: number): string => (ms / 1000).toFixed(1);

export function recoveriesOf(events: readonly RunEvent[]): ChaosReport["recovery"] {
  const recoveries = events.flatMap((event) =>
    event.type === "worker-restarted" && event.recovery !== undefined ? [event.recovery] : [],
  );
  const seconds = (parts: (typeof recoveries)[number]) => Object.values(parts).reduce((sum, part) => sum + part, 0);
  const sorted = recoveries.toSorted((a, b) => seconds(a) - seconds(b));
  const rounded = (value: number) => Math.round(value * 100) / 100;
  const at = (share: number) => sorted[Math.ceil(share * sorted.length) - 1];
  const secondsAt = (share: number) => rounded(seconds(at(share) ?? none));
  const parts = Object.keys(none) as (keyof typeof none)[];
  return {
    num: sorted.length,
    median: secondsAt(0.5),
    p90: secondsAt(0.9),
    longest: secondsAt(1),
    medianParts: Object.fromEntries(
      parts.map((part) => [part, sorted.length === 0 ? 0 : rounded(median(sorted.map((each) => each[part])))]),
    ),
    longestParts: at(1) ?? none,
    medianOfSilent: rounded(median(sorted.filter(wasSilent).map(seconds))),
    medianOfEnded: rounded(median(sorted.filter((each) => !wasSilent(each)).map(seconds))),
  };
}

/** A process that stands still is missed only when its heartbeats have been away for `supervision.heartbeatTimeoutMs`. */
const wasSilent = ({ detection }: typeof none): boolean => detection > 1;

const none = { detection: 0, placement: 0, start: 0, state: 0, redone: 0 };

function drawDisaster(random: () => number, disasters: Struck["disasters"]): string {
  const weights = Object.entries(disasters).flatMap(([kind, { weight }]) => new Array<string>(weight).fill(kind));
  return weights[Math.floor(random() * weights.length)]!;
}

/** What starts something again while something else is still broken may fail at first. */
async function again(end: () => Promise<unknown>): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    try {
      await end();
      return;
    } catch (error) {
      if (attempt === 10) throw error;
      await delay(1500);
    }
  }
}
