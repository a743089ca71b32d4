/**
 * The same rollout by the plainest means: every decision scans everything, and nothing is shared with `runEvents` but the
 * factor, the quantile and Formula 3, so that each tests the other.
 */
import { interferenceFactor } from "../interference.ts";
import { inverseNormal } from "../normal.ts";
import { placeByDynamicProgram } from "../place.ts";
import { noFinitePlacement, type Outcome } from "./outcome.ts";
import type { RolloutProblem } from "./problem.ts";

type Item = {
  readonly index: number;
  readonly prompt: number;
  readonly steps: RolloutProblem["trajectories"][number]["steps"];
  state: "away" | "queued" | "active" | "finished";
  /** of the step to come or under way */
  step: number;
  at: number;
  home: number | undefined;
  key: number;
  left: number;
  end: number;
  context: number;
  generated: number;
  since: number;
  delay: number;
  predicted: number;
};

type Rank = { readonly tokenTime: number; given: number; at: number };

export function runNaive(problem: RolloutProblem): Outcome {
  const { workers: stated, F, maxBatch, scheduler, priority, placement, prefillRatio, migration } = problem;
  const factor = interferenceFactor(F);
  const items: Item[] = problem.trajectories.map(({ prompt = 0, context, steps }, index) => ({
    index,
    prompt,
    steps,
    state: "away",
    step: 0,
    at: 0,
    home: undefined,
    key: 0,
    left: 0,
    end: 0,
    context,
    generated: 0,
    since: 0,
    delay: 0,
    predicted: steps[0]!.pred,
  }));
  const ranks: Rank[] = stated.map(({ tokenTime }) => ({ tokenTime, given: 0, at: 0 }));
  const groups = placement.type === "dp" ? groupsOf(problem, factor) : undefined;
  const counts = { preemptions: 0, migrations: 0, exposedMigration: 0, cacheMisses: 0, events: 0 };

  const activeOf = (j: number): Item[] => items.filter(({ state, home }) => state === "active" && home === j);
  const queueOf = (j: number): Item[] =>
    items
      .filter(({ state, home }) => state === "queued" && home === j)
      .sort((a, b) => a.key - b.key || a.index - b.index);
  const loadOf = (j: number): number => activeOf(j).length + queueOf(j).length;
  const firstEnd = (j: number): number => Math.min(...activeOf(j).map(({ end }) => end));
  const due = (j: number): number => {
    const active = activeOf(j).length;
    if (active === 0) return Number.POSITIVE_INFINITY;
    const { tokenTime, given, at } = ranks[j]!;
    return at + Math.max(0, firstEnd(j) - given) * tokenTime * factor(active);
  };

  const place = ({ index, prompt, home }: Item): number => {
    const loads = ranks.map((_, j) => loadOf(j));
    const least = loads.indexOf(Math.min(...loads));
    const cached = (placement.by === "prompt" ? prompt : index) % ranks.length;
    if (placement.type === "cache") return cached;
    if (placement.type === "least-load") return least;
    if (placement.type === "dp") return home ?? groups!.order[groups!.groupOf[index]!]!;
    return Math.max(...loads) / Math.max(1, Math.min(...loads)) > placement.threshold! ? least : (home ?? cached);
  };

  const keyOf = (item: Item, now: number): number => {
    const { pred, predTool } = item.steps[item.step]!;
    if (scheduler === "time") return -(pred * (ranks[item.home!]!.tokenTime * factor(maxBatch)) + predTool);
    if (scheduler === "rr") return now;
    if (scheduler === "fcfs") return item.index;
    if (scheduler === "sjf") return pred;
    if (scheduler === "las") return item.generated;
    return priority === "total" ? -(pred + item.generated) : -pred;
  };

  const targetOf = (item: Item): number => {
    const { sizes, order } = groups!;
    const unfinished = items.filter(({ state }) => state !== "finished");
    const rank = unfinished.filter(
      (other) => other.predicted > item.predicted || (other.predicted === item.predicted && other.index < item.index),
    ).length;
    const f = unfinished.length / items.length;
    const last = sizes.length - 1;
    let end = 0;
    for (let g = 0; g < last; g++) {
      end += sizes[g]!;
      if (sizes[g]! > 0 && rank < end * f) return order[g]!;
    }
    let g = last;
    while (sizes[g] === 0) g--;
    return order[g]!;
  };

  const endStep = (item: Item, now: number): void => {
    counts.events++;
    const { tokens, tool, observe } = item.steps[item.step]!;
    item.generated += tokens;
    item.context += tokens + observe;
    item.step++;
    item.state = "away";
    const next = item.steps[item.step];
    if (next === undefined) {
      item.state = "finished";
      item.at = now;
      return;
    }
    let wait = tool;
    if (groups !== undefined && placement.migrate) {
      item.predicted = next.pred + (placement.rankBy === "total" ? item.generated : 0);
      const target = targetOf(item);
      if (target !== item.home) {
        item.home = target;
        const seconds = migration.base + migration.perToken * item.context;
        counts.migrations++;
        counts.exposedMigration += Math.max(0, seconds - tool);
        wait = Math.max(tool, seconds);
      }
    }
    item.at = now + wait;
  };

  const admit = (j: number, now: number): void => {
    const start = (item: Item): void => {
      item.state = "active";
      item.end = ranks[j]!.given + item.left;
      item.delay += now - item.since;
    };
    while (activeOf(j).length < maxBatch && queueOf(j).length > 0) start(queueOf(j)[0]!);
    while ((scheduler === "pps" || scheduler === "time") && queueOf(j).length > 0) {
      const head = queueOf(j)[0]!;
      const victim = activeOf(j).sort((a, b) => b.key - a.key || b.index - a.index)[0]!;
      if (head.key >= victim.key) return;
      victim.state = "queued";
      victim.left = victim.end - ranks[j]!.given;
      victim.since = now;
      start(head);
      counts.preemptions++;
    }
  };

  for (;;) {
    const dues = ranks.map((_, j) => due(j));
    const now = Math.min(...dues, ...items.filter(({ state }) => state === "away").map(({ at }) => at));
    if (!(now < Number.POSITIVE_INFINITY)) break;
    const touched = new Set<number>();
    const touch = (j: number): void => {
      if (touched.has(j)) return;
      touched.add(j);
      const rank = ranks[j]!;
      const active = activeOf(j).length;
      if (active > 0) rank.given += (now - rank.at) / (rank.tokenTime * factor(active));
      rank.at = now;
    };
    for (const [j, rank] of ranks.entries()) {
      if (dues[j] !== now) continue;
      touch(j);
      const first = firstEnd(j);
      rank.given = Math.max(rank.given, first);
      const ended = activeOf(j).filter(({ end }) => end <= first * (1 + 1e-12) + 1e-9);
      for (const item of ended) endStep(item, now);
    }
    for (const item of items) {
      if (item.state !== "away" || item.at !== now) continue;
      counts.events++;
      const worker = place(item);
      item.left = item.steps[item.step]!.tokens;
      if (worker !== item.home) {
        item.left += prefillRatio * item.context;
        if (item.home !== undefined) counts.cacheMisses++;
        item.home = worker;
      }
      item.key = keyOf(item, now);
      item.state = "queued";
      item.since = now;
      touch(worker);
    }
    for (let j = 0; j < ranks.length; j++) if (touched.has(j)) admit(j, now);
  }
  return {
    finish: Float64Array.from(items, ({ state, at }) => (state === "finished" ? at : Number.POSITIVE_INFINITY)),
    queueDelay: Float64Array.from(items, ({ delay }) => delay),
    ...counts,
    groupSizes: groups?.sizes ?? null,
  };
}

type Groups = { readonly order: number[]; readonly sizes: number[]; readonly groupOf: number[] };

/** The least makespan by Formula 3; then each worker takes as many as it allows, the rest still fitting. */
function groupsOf(problem: RolloutProblem, factor: (k: number) => number): Groups {
  const { trajectories, workers, maxBatch, placement } = problem;
  const order = workers.map((_, j) => j).sort((a, b) => workers[a]!.tokenTime - workers[b]!.tokenTime || a - b);
  const sorted = trajectories.map((_, i) => i).sort((a, b) => first(b) - first(a) || a - b);
  const noisy = (k: number): number => {
    const base = k <= maxBatch ? factor(k) : (factor(maxBatch) * k) / maxBatch;
    return base * Math.exp((placement.robust ?? 0) * (k === 1 ? 0 : inverseNormal((k - 0.375) / (k + 0.25))));
  };
  const lengths = Float64Array.from(sorted, first);
  const times = order.map((j) => workers[j]!.tokenTime);
  const placed = placeByDynamicProgram(lengths, times, (from, k) => noisy(k) * lengths[from]!);
  if (placed === undefined) throw noFinitePlacement();
  const { makespan } = placed;
  const known = new Map<string, number>();
  /** The most that worker g takes from the i-th on; -1 when the rest cannot be finished. */
  const most = (g: number, i: number): number => {
    if (g === times.length) return i === lengths.length ? 0 : -1;
    const key = `${g} ${i}`;
    const found = known.get(key);
    if (found !== undefined) return found;
    let size = lengths.length - i;
    while (size >= 0) {
      const fits = size === 0 || noisy(size) * lengths[i]! * times[g]! <= makespan;
      if (fits && most(g + 1, i + size) >= 0) break;
      size--;
    }
    known.set(key, size);
    return size;
  };
  const sizes: number[] = [];
  for (const g of times.keys())
    sizes.push(
      most(
        g,
        sizes.reduce((sum, size) => sum + size, 0),
      ),
    );
  const groupOf: number[] = [];
  let at = 0;
  for (const [g, size] of sizes.entries()) for (const end = at + size; at < end; at++) groupOf[sorted[at]!] = g;
  return { order, sizes, groupOf };

  function first(i: number): number {
    return trajectories[i]!.steps[0]!.pred;
  }
}
