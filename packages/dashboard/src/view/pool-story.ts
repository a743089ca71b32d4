/** What a pool's history tells: which run held which devices when, who waited for whom, and what was decided. */
import type { PoolDecision, PoolEntry, PoolWait } from "@treadle/contracts";

export type HeldLease = {
  readonly run: string;
  readonly token: number;
  readonly devices: readonly string[];
  readonly fromMs: number;
  toMs: number;
  /** what computed under it, as far as its run has said, in order: each until the next */
  readonly works: { readonly work: string; readonly fromMs: number }[];
};
export type RunWait = { readonly run: string; readonly on: PoolWait; readonly fromMs: number; toMs: number };
export type DatedDecision = PoolDecision & { readonly atMs: number };

export type PoolStory = {
  readonly fromMs: number;
  readonly toMs: number;
  /** in the order in which they came */
  readonly runs: readonly string[];
  readonly devices: readonly string[];
  readonly leases: readonly HeldLease[];
  readonly waits: readonly RunWait[];
  readonly decisions: readonly DatedDecision[];
  /** of runs that have other names in the pool */
  readonly runIds: ReadonlyMap<string, string>;
  /** places at which entries are missing */
  readonly numLosses: number;
};

/**
 * Entries in their order. What has no end in the history lasts until the last entry, or, where entries are missing, until the
 * history goes on without it.
 */
export function poolStory(entries: Iterable<PoolEntry>): PoolStory {
  let [fromMs, toMs] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  const runs = new Set<string>();
  const devices = new Set<string>();
  const leases: HeldLease[] = [];
  const waits: RunWait[] = [];
  const decisions: DatedDecision[] = [];
  const runIds = new Map<string, string>();
  const held = new Map<number, HeldLease>();
  const waiting = new Map<string, RunWait>();
  /** that were held where entries are missing: they go on if they are said again */
  const doubtful = new Map<number, HeldLease>();
  let numLosses = 0;
  for (const entry of entries) {
    const { atMs } = entry;
    // Runs take a while to start, and nothing is to be seen of that.
    if (entry.type !== "run" && entry.type !== "stage" && entry.type !== "lost") fromMs = Math.min(fromMs, atMs);
    toMs = Math.max(toMs, atMs);
    if (entry.type === "run") runIds.set(entry.run, entry.runId);
    else if (entry.type === "stage") runs.add(entry.run);
    else if (entry.type === "decided") decisions.push({ ...entry.decision, atMs });
    else if (entry.type === "holds") {
      const { run, token, work } = entry;
      const known = held.get(token) ?? doubtful.get(token);
      const lease = known ?? { run, token, devices: entry.devices, fromMs: atMs, toMs: atMs, works: [] };
      if (known === undefined) leases.push(lease);
      held.set(token, lease);
      runs.add(run);
      for (const device of entry.devices) devices.add(device);
      if (work !== undefined && lease.works.at(-1)?.work !== work) lease.works.push({ work, fromMs: atMs });
    } else if (entry.type === "released") {
      const lease = held.get(entry.token);
      if (lease !== undefined) lease.toMs = atMs;
      held.delete(entry.token);
    } else if (entry.type === "lost") {
      numLosses++;
      for (const open of [...held.values(), ...waiting.values()]) open.toMs = atMs;
      for (const [token, lease] of held) doubtful.set(token, lease);
      for (const known of [held, waiting]) known.clear();
    } else {
      const { run, on } = entry;
      const known = waiting.get(run);
      if (known !== undefined) known.toMs = atMs;
      if (on !== null && known !== undefined && isSameWait(known.on, on)) continue;
      waiting.delete(run);
      if (on === null) continue;
      const wait = { run, on, fromMs: atMs, toMs: atMs };
      waits.push(wait);
      waiting.set(run, wait);
      runs.add(run);
    }
  }
  for (const open of [...held.values(), ...waiting.values()]) open.toMs = toMs;
  const byNumber = new Intl.Collator("en", { numeric: true }).compare;
  return {
    ...(Number.isFinite(toMs) ? { fromMs: Math.min(fromMs, toMs), toMs } : { fromMs: 0, toMs: 0 }),
    ...{ runs: [...runs], devices: [...devices].sort(byNumber), leases, waits, decisions, runIds, numLosses },
  };
}

/** Runs of a pool that outlives them are known by their ids, of which a page shows the part that tells them apart. */
export function withShortNames(story: PoolStory): PoolStory {
  const shortOf = new Map<string, string>();
  const of = (run: string): string => {
    const known = shortOf.get(run);
    if (known !== undefined) return known;
    const [, workflow, hash] = /^\d{8}-\d{6}-(.+)-([0-9a-f]{4})[0-9a-f]{4}$/.exec(run) ?? [];
    const short = hash === undefined ? run : `${workflow} ${hash}`;
    const name = [...shortOf.values()].includes(short) ? run : short;
    shortOf.set(run, name);
    return name;
  };
  return {
    ...story,
    runs: story.runs.map(of),
    leases: story.leases.map((lease) => ({ ...lease, run: of(lease.run) })),
    waits: story.waits.map((wait) => ({ ...wait, run: of(wait.run), on: { ...wait.on, runs: wait.on.runs.map(of) } })),
    decisions: story.decisions.map((each) => ({ ...each, run: of(each.run), others: each.others.map(of) })),
    runIds: new Map(story.runs.map((run) => [of(run), story.runIds.get(run) ?? run])),
  };
}

/** Component and run are what a reader knows; what tells works of equal components apart is left out. */
export const componentOfWork = (work: string): string => work.split("@")[0] as string;

const isSameWait = (a: PoolWait, b: PoolWait): boolean =>
  a.type === b.type && a.runs.length === b.runs.length && a.runs.every((run, i) => run === b.runs[i]);
