/**
 * Strikes a real cluster at random for a while, lets it come to rest, and judges: every prompt that was put was trained
 * once, in order; the run goes on and ends when asked; no process, lock, file or shared memory is left.
 */
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { median, type RunEvent } from "@treadle/contracts";
import { replayRun } from "@treadle/runtime/runner";
import { randomOf } from "../soak/virtual-network.ts";
import { segmentsOf } from "../support/cluster.ts";
import { startTreadle } from "../support/treadle.ts";
import { batch, ChaosCluster, type Subject } from "./chaos-cluster.ts";
import { type Disaster, disasters, drawDisaster, possibleDisasters, type Strike } from "./disasters.ts";
import { Pauses } from "./pauses.ts";

export type ChaosOptions = {
  readonly minutes: number;
  readonly seed: number;
  readonly workflow: Subject;
  readonly log: (text: string) => void;
  /** struck once each, in this order, before any strike is drawn, also where that takes longer than `minutes` */
  readonly first?: readonly Disaster[];
  /** from one strike to the next, at most */
  readonly pauseMs?: number;
  /** ends it early, and everything that it started */
  readonly signal?: AbortSignal;
};

export type ChaosReport = {
  readonly steps: number;
  readonly prompts: number;
  /** by each kind that was possible */
  readonly strikes: Readonly<Partial<Record<Disaster, number>>>;
  readonly workersReplaced: number;
  readonly runnersStarted: number;
  /** why runners ended that nobody had killed; each was resumed */
  readonly gaveUp: readonly string[];
  /** the longest time without a finished step */
  readonly longestPauseSeconds: number;
  /** the same, less the time for which strikes kept the runner, every node, or every server away, when nobody can go on */
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
const endMs = 90_000;

export async function chaos({
  minutes,
  seed,
  workflow,
  log,
  first = [],
  pauseMs = 4000,
  signal,
}: ChaosOptions): Promise<ChaosReport> {
  const random = randomOf(seed);
  await using cluster = await ChaosCluster.open(random, log, workflow);
  cluster.resume();
  await within(restMs, "two steps to begin with", () => cluster.steps >= 2, signal);

  const possible = possibleDisasters(cluster.network !== undefined);
  const strikes = Object.fromEntries(possible.map((kind) => [kind, 0])) as Partial<Record<Disaster, number>>;
  const endings = new Set<Promise<void>>();
  const ongoing = new Set<string>();
  const calm = new AbortController();
  const pauses = new Pauses(performance.now(), cluster.steps);
  let wrong: string[] = [];
  const watch = () => {
    const look = { nowMs: performance.now(), steps: cluster.steps, isStandstill: cluster.absences.isStandstill };
    const pause = pauses.look(look, wrong.length);
    if (pause === undefined) return;
    const { ms, countedMs, sinceStruckMs, awayMs } = pause;
    if (countedMs > longPauseMs) {
      const seconds = `${inSeconds(countedMs)} s without one, ${inSeconds(sinceStruckMs)} s of them since the last strike${awayMs > 0 ? ` and ${inSeconds(awayMs)} s in which nobody could make one` : ""}`;
      log(`before step ${look.steps}: ${seconds}: ${wrong.join(", ")}`);
      if (countedMs > veryLongPauseMs) for (const line of cluster.saidSince(ms)) log(`    ${line}`);
    }
    wrong = [...ongoing];
  };
  const watching = setInterval(watch, 250);
  const untilMs = performance.now() + minutes * 60_000;
  const due = [...first];
  try {
    while (performance.now() < untilMs || due.length > 0) {
      signal?.throwIfAborted();
      if (performance.now() > untilMs + restMs) throw new Error(`it could not be struck by '${due.join("', '")}'`);
      await delay(300 + random() * pauseMs);
      // On a slow machine what was struck takes long to start again, and would never get on.
      if (endings.size >= maxAtOnce || pauses.quietMs(performance.now()) > patienceMs) continue;
      const kind = due[0] ?? drawDisaster(random, possible);
      const lastsMs = 200 + random() ** 2 * Math.min(longestMs, minutes * 30_000);
      const end = await (disasters[kind].strike as Strike)(cluster);
      if (end === undefined) continue;
      due.shift();
      pauses.strike(performance.now());
      strikes[kind] = (strikes[kind] ?? 0) + 1;
      const what = `${kind} for ${(lastsMs / 1000).toFixed(1)} s`;
      log(`${cluster.steps} steps: ${what}`);
      ongoing.add(what);
      wrong.push(what);
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
    log(`${cluster.steps} steps: nothing is wrong any more`);
    const reached = cluster.steps + 2;
    await within(restMs, `step ${reached} once nothing is wrong`, () => cluster.steps >= reached, signal);
  } finally {
    clearInterval(watching);
    calm.abort();
    await Promise.allSettled(endings);
  }
  watch();
  const events = cluster.runners.flatMap((runner) => runner.events);
  const recovery = recoveriesOf(events);
  log(`workers recovered: ${JSON.stringify(recovery)}`); // worth having whatever the judge says
  await judge(cluster, log);
  const { steps } = cluster;
  return {
    steps,
    prompts: steps * batch,
    strikes,
    workersReplaced: events.filter(({ type }) => type === "worker-restarted").length,
    runnersStarted: cluster.runners.length,
    gaveUp: cluster.gaveUp,
    longestPauseSeconds: Math.round(pauses.longestMs / 1000),
    longestPause: { seconds: pauses.longestCounted.ms / 1000, strikes: pauses.longestCounted.strikes },
    longestRecoverySeconds: pauses.longestSinceStruckMs / 1000,
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

/** J1, S4. */
export async function judge(cluster: ChaosCluster, log: (text: string) => void): Promise<void> {
  const { world } = cluster;
  const runId = cluster.runId as string;
  const code = await Promise.race([cluster.stop(), delay(endMs, "no end", { ref: false })]);
  if (code !== 0) throw new Error(`the run did not stop when it was asked to: ${code}`);
  const { steps } = cluster;
  await cluster.expectWhole(steps);
  const wanted = steps + 2;
  log(`${steps} steps: resumed from the command line for two more`);
  const args = ["resume", runId, "--runs", world.runs, "--json", "--set", `steps=${wanted}`];
  const resumed = await startTreadle(args, undefined, world.project).finished;
  if (resumed.code !== 0)
    throw new Error(`'treadle resume' ended with ${resumed.code}: ${resumed.stderr.slice(-2000)}`);
  await cluster.expectWhole(wanted);
  for (const agent of cluster.agents) agent?.child.kill("SIGTERM");
  await within(endMs, "the agents to leave", () => cluster.agents.every((agent) => agent?.child.exitCode === 0));
  await within(endMs, "every process to be gone", () => cluster.processes().length === 0);
  await replayed(join(world.runs, runId), world.project, log);
  await within(endMs, "shared memory to be gone", async () => (await segmentsOf(runId)).length === 0);
  await world.expectNothingLeft(runId, []);
}

/** RS7: what every runner of the run decided, killed ones included, is decided again from what it wrote down. */
async function replayed(folder: string, project: string, log: (text: string) => void): Promise<void> {
  const { recordings } = await replayRun(folder, project);
  const inputs = recordings.reduce((sum, recording) => sum + recording.inputs, 0);
  log(`${recordings.length} runners decided ${inputs} inputs; decided again, they have the same effects`);
  if (inputs === 0) throw new Error("nothing was recorded");
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

async function within(
  limitMs: number,
  what: string,
  holds: () => boolean | Promise<boolean>,
  signal?: AbortSignal,
): Promise<void> {
  const untilMs = performance.now() + limitMs;
  while (!(await holds())) {
    signal?.throwIfAborted();
    if (performance.now() > untilMs) throw new Error(`waited ${limitMs / 1000} s in vain for ${what}`);
    await delay(100);
  }
}
