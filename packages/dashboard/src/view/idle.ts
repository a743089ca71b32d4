/**
 * Why devices are not at work: the time that each component did not compute, by cause, worst first. Pure.
 *
 * Each instant of a rank counts once, for the first of these that it spent it on: computing, moving data, waiting for a
 * device, waiting for data, being called without doing any of these, nothing. What work hides costs nothing.
 */
import { type Category, categories, categoryNumber, type SpanTable } from "./span-table.ts";

export type IdleCause = {
  readonly component: string;
  /** in words */
  readonly cause: string;
  readonly kind: "device" | "data" | "move" | "outside" | "unmeasured";
  /** of an average rank of the component */
  readonly seconds: number;
  /** of the window */
  readonly share: number;
};

export type ComponentTime = {
  readonly component: string;
  readonly numRanks: number;
  /** shares of the window, which add up to 1 */
  readonly compute: number;
  readonly transfer: number;
  readonly lockWait: number;
  readonly channelWait: number;
  readonly idle: number;
};

export type IdleReport = {
  readonly seconds: number;
  readonly components: readonly ComponentTime[];
  readonly causes: readonly IdleCause[];
};

export type IdleWindow = { readonly fromMs: number; readonly toMs: number };

const moves: ReadonlySet<Category> = new Set(["transfer", "onload", "offload", "checkpoint"]);
const ranksOf: readonly Category[] = [
  "compute",
  "transfer",
  "onload",
  "offload",
  "checkpoint",
  "lock-wait",
  "channel-wait",
  "call",
];
const precedence = new Map(ranksOf.map((name, index) => [categoryNumber(name), index]));
const none = ranksOf.length;

/** `runner` frames everything and computes nothing, so it is left out. */
export function whyIdle(table: SpanTable, { fromMs, toMs }: IdleWindow): IdleReport {
  const seconds = Math.max(0, toMs - fromMs) / 1000;
  const rows = new Map<number, number[]>();
  for (let row = 0; row < table.length; row++) {
    const start = table.start[row] as number;
    if (start >= toMs || start + (table.duration[row] as number) <= fromMs || table.duration[row] === 0) continue;
    if (!precedence.has(table.category[row] as number)) continue;
    const worker = table.worker[row] as number;
    const list = rows.get(worker);
    if (list) list.push(row);
    else rows.set(worker, [row]);
  }
  const totals = new Map<string, { ranks: number; busy: Map<string, number> }>();
  table.workers.forEach((worker, index) => {
    const component = worker.replace(/\/[^/]*$/, "");
    if (component === "runner") return;
    const total = totals.get(component) ?? { ranks: 0, busy: new Map<string, number>() };
    totals.set(component, total);
    total.ranks++;
    for (const [key, ms] of timeOf(table, rows.get(index) ?? [], fromMs, toMs))
      total.busy.set(key, (total.busy.get(key) ?? 0) + ms);
  });
  const causes: IdleCause[] = [];
  const components: ComponentTime[] = [];
  for (const [component, { ranks, busy }] of totals) {
    const share = { compute: 0, transfer: 0, lockWait: 0, channelWait: 0 };
    for (const [key, ms] of busy) {
      const [category, name] = JSON.parse(key) as [Category, string];
      const of = ms / 1000 / ranks;
      const part = seconds > 0 ? of / seconds : 0;
      if (category === "compute") share.compute += part;
      else if (moves.has(category)) share.transfer += part;
      else if (category === "lock-wait") share.lockWait += part;
      else if (category === "channel-wait") share.channelWait += part;
      const found = describe(category, name);
      if (found) causes.push({ component, ...found, seconds: of, share: part });
    }
    const known = [...busy.values()].reduce((sum, ms) => sum + ms, 0) / 1000 / ranks;
    const outside = Math.max(0, seconds - known);
    if (seconds > 0)
      causes.push({
        component,
        cause: "has no call to do",
        kind: "outside",
        seconds: outside,
        share: outside / seconds,
      });
    const idle = Math.max(0, 1 - share.compute - share.transfer - share.lockWait - share.channelWait);
    components.push({ component, numRanks: ranks, ...share, idle: seconds > 0 ? idle : 0 });
  }
  causes.sort((a, b) => b.seconds - a.seconds);
  return { seconds, components, causes: causes.filter(({ share }) => share >= 0.001) };
}

/** Milliseconds of one rank by `[category, name]`, each instant counted once. */
function timeOf(table: SpanTable, rows: readonly number[], fromMs: number, toMs: number): Map<string, number> {
  const edges = new Float64Array(rows.length * 2);
  const order = new Uint32Array(rows.length * 2);
  rows.forEach((row, i) => {
    const start = table.start[row] as number;
    edges[2 * i] = Math.max(fromMs, start);
    edges[2 * i + 1] = Math.min(toMs, start + (table.duration[row] as number));
    order[2 * i] = 2 * i;
    order[2 * i + 1] = 2 * i + 1;
  });
  order.sort((a, b) => (edges[a] as number) - (edges[b] as number));
  const busy = new Map<string, number>();
  // Of each precedence the names that are under way, newest last.
  const active: number[][] = Array.from({ length: none }, () => []);
  let previous = fromMs;
  for (const at of order) {
    const time = edges[at] as number;
    if (time > previous) {
      const current = active.find((list) => list.length > 0)?.at(-1);
      if (current !== undefined) {
        const category = categories[table.category[current] as number] as Category;
        const name =
          category === "compute" || category === "call" ? "" : (table.names[table.name[current] as number] as string);
        const key = JSON.stringify([category, name]);
        busy.set(key, (busy.get(key) ?? 0) + time - previous);
      }
      previous = time;
    }
    const row = rows[at >> 1] as number;
    const list = active[precedence.get(table.category[row] as number) as number] as number[];
    if (at % 2 === 0) list.push(row);
    else {
      const index = list.lastIndexOf(row);
      if (index >= 0) list.splice(index, 1);
    }
  }
  return busy;
}

function describe(category: Category, name: string): Pick<IdleCause, "cause" | "kind"> | undefined {
  switch (category) {
    case "lock-wait":
      return { cause: "waits for its devices, which others have", kind: "device" };
    case "channel-wait":
      return { cause: `waits at channel '${name}'`, kind: "data" };
    case "onload":
      return { cause: "loads its memory onto devices", kind: "move" };
    case "offload":
      return { cause: "takes its memory off devices", kind: "move" };
    case "checkpoint":
      return { cause: `saves: ${name}`, kind: "move" };
    case "transfer":
      return { cause: `moves data: ${name}`, kind: "move" };
    case "call":
      return { cause: "is in a call, in what no timer measures", kind: "unmeasured" };
    default:
      return undefined;
  }
}
