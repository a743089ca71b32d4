/** What members of a cycle put before they take, and how much goes round, which a profile does not say. Pure. */
import type { FlowGraph } from "@treadle/contracts";

/** What a method moves over one channel in a step, over all ranks of its component. */
export type Flow = { readonly channel: string; readonly items: number };

/** How a method takes part in a cycle: streams of a cycle have no end of their own, so it counts. */
export type CycleModel = {
  /** channels of the cycle among `takes` and `puts` */
  readonly channels: ReadonlySet<string>;
  /** items that it puts before it takes any, over all ranks */
  readonly initial: number;
  /** items that go round, over all ranks */
  readonly population: number;
};

/**
 * Who begins a cycle is not traced. Whoever puts more into it than it takes out must put first, as a simulator its first
 * observations; where all put as many as they take, it is a member that is fed from outside, else the first.
 */
export function cycleOf(
  component: string,
  takes: readonly Flow[],
  puts: readonly Flow[],
  graph: FlowGraph,
): CycleModel | undefined {
  const members = graph.cycles.find((names) => names.includes(component));
  if (!members) return undefined;
  const inside = Object.entries(graph.channels).filter(
    ([, { producers, consumers }]) =>
      producers.some((name) => members.includes(name)) && consumers.some((name) => members.includes(name)),
  );
  const channels = new Set(inside.map(([channel]) => channel));
  const sum = (flows: readonly Flow[]) =>
    flows.filter(({ channel }) => channels.has(channel)).reduce((total, { items }) => total + items, 0);
  if (sum(takes) + sum(puts) === 0) return undefined;
  const surplus = (name: string): number =>
    inside.reduce((total, [, { producers, consumers, itemsPerStep }]) => {
      const put = producers.includes(name) ? itemsPerStep / producers.length : 0;
      const taken = consumers.includes(name) ? itemsPerStep / consumers.length : 0;
      return total + put - taken;
    }, 0);
  const most = Math.max(...members.map(surplus));
  const isFed = (name: string) =>
    Object.entries(graph.channels).some(
      ([channel, { consumers }]) => !channels.has(channel) && consumers.includes(name),
    );
  const first = most >= 0.5 ? members.find((name) => surplus(name) === most) : (members.find(isFed) ?? members[0]);
  const fedItems = Object.entries(graph.channels)
    .filter(([channel, { consumers }]) => !channels.has(channel) && consumers.includes(first as string))
    .reduce((total, [, { itemsPerStep }]) => total + itemsPerStep, 0);
  const begins = inside.filter(([, { producers }]) => producers.includes(first as string));
  const putByFirst = begins.reduce(
    (total, [, { itemsPerStep, producers }]) => total + itemsPerStep / producers.length,
    0,
  );
  const population = Math.max(1, Math.round(most >= 0.5 ? most : Math.min(putByFirst, fedItems || 1)));
  return { channels, population, initial: component === first ? Math.min(population, sum(puts)) : 0 };
}

/** What a rank takes and puts of a cycle's channels; without a take, what it puts before any. */
export type Turn = { readonly take: Flow | undefined; readonly puts: readonly Flow[] };

/** `takes`, `puts`: of its method, over all `ranks` of the component. A rank takes its part of what goes round at a time. */
export function turnsOf(
  { channels, initial, population }: CycleModel,
  { takes, puts }: { readonly takes: readonly Flow[]; readonly puts: readonly Flow[] },
  { rank, ranks }: { readonly rank: number; readonly ranks: number },
): Turn[] {
  const inside = (flows: readonly Flow[]) => flows.filter(({ channel }) => channels.has(channel));
  const due = inside(puts).map(({ channel, items }) => {
    const total = equalPart(items, ranks, rank);
    const first = Math.min(total, equalPart(initial, ranks, rank));
    return { channel, total, first, put: first };
  });
  const left = inside(takes).map(({ channel, items }) => ({ channel, items: equalPart(items, ranks, rank) }));
  const total = left.reduce((sum, { items }) => sum + items, 0);
  const chunk = Math.max(1, Math.floor(population / ranks));
  const begun = due.flatMap(({ channel, first }) => (first > 0 ? [{ channel, items: first }] : []));
  const turns: Turn[] = begun.length > 0 ? [{ take: undefined, puts: begun }] : [];
  let taken = 0;
  while (taken < total) {
    for (const each of left) {
      if (each.items === 0) continue;
      const items = Math.min(chunk, each.items);
      each.items -= items;
      taken += items;
      const answers: Flow[] = [];
      for (const put of due) {
        // Rounded up to whole answers: none must wait for the question after it.
        const whole = Math.ceil(((put.total - put.first) * taken) / total / chunk - 1e-9) * chunk;
        const target = Math.min(put.total, put.first + whole);
        if (target > put.put) answers.push({ channel: put.channel, items: target - put.put });
        put.put = Math.max(put.put, target);
      }
      turns.push({ take: { channel: each.channel, items }, puts: answers });
    }
  }
  return turns;
}

/** Equal parts of a whole number; the parts of all ranks add up to it. */
export function equalPart(items: number, ranks: number, rank: number): number {
  return Math.floor(((rank + 1) * items) / ranks) - Math.floor((rank * items) / ranks);
}
