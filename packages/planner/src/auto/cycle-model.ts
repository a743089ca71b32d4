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
  /** parts of what goes round that a rank takes one after the other, by channel: while it works on one, others are elsewhere */
  readonly stages: ReadonlyMap<string, number>;
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
  return {
    ...{ channels, population, initial: component === first ? Math.min(population, sum(puts)) : 0 },
    stages: new Map(inside.map(([channel, moved]) => [channel, stagesOf(moved, population)])),
  };
}

/** How often a rank takes while all that goes round comes by once; 1 where that was not observed. */
function stagesOf({ itemsPerStep, takesPerStep }: FlowGraph["channels"][string], population: number): number {
  if (takesPerStep === undefined || itemsPerStep <= 0) return 1;
  return Math.max(1, Math.round((takesPerStep * population) / itemsPerStep));
}

/** Whether members of a cycle work at the same time, each on its part of what goes round. */
export function isStaged(graph: FlowGraph): boolean {
  const flows = Object.entries(graph.channels).map(([channel, { itemsPerStep }]) => ({ channel, items: itemsPerStep }));
  return graph.cycles.some(([name]) => {
    const { stages } = cycleOf(name as string, flows, flows, graph) ?? {};
    return [...(stages?.values() ?? [])].some((parts) => parts > 1);
  });
}

/** What a rank takes and puts of a cycle's channels; without a take, what it puts before any. */
export type Turn = { readonly take: Flow | undefined; readonly puts: readonly Flow[] };

/**
 * `takes`, `puts`: of its method, over all `ranks` of the component. A rank takes its part of what goes round at a time, or, in
 * stages, equal parts of that in turn.
 */
export function turnsOf(
  { channels, initial, population, stages }: CycleModel,
  { takes, puts }: { readonly takes: readonly Flow[]; readonly puts: readonly Flow[] },
  { rank, ranks }: { readonly rank: number; readonly ranks: number },
): Turn[] {
  const inside = (flows: readonly Flow[]) => flows.filter(({ channel }) => channels.has(channel));
  const due = inside(puts).map(({ channel, items }) => {
    const total = equalPart(items, ranks, rank);
    const first = Math.min(total, equalPart(initial, ranks, rank));
    return { channel, total, first, put: first, answered: 0 };
  });
  const round = Math.max(1, Math.floor(population / ranks));
  const left = inside(takes).map(({ channel, items }) => ({ channel, items: equalPart(items, ranks, rank) }));
  const total = left.reduce((sum, { items }) => sum + items, 0);
  const begun = due.flatMap(({ channel, first }) => (first > 0 ? [{ channel, items: first }] : []));
  const turns: Turn[] = begun.length > 0 ? [{ take: undefined, puts: begun }] : [];
  let taken = 0;
  while (taken < total) {
    for (const each of left) {
      if (each.items === 0) continue;
      const items = Math.min(round, each.items);
      each.items -= items;
      const parts = Math.min(items, stages.get(each.channel) ?? 1);
      let ofRound = 0;
      for (let part = 0; part < parts; part++) {
        const chunk = equalPart(items, parts, part);
        ofRound += chunk;
        const answers: Flow[] = [];
        for (const put of due) {
          // Rounded up to whole answers: none must wait for the question after it.
          const whole = Math.ceil(((put.total - put.first) * (taken + items)) / total / round - 1e-9) * round;
          const answered = put.answered + ((whole - put.answered) * ofRound) / items;
          const target = Math.min(put.total, put.first + Math.ceil(answered - 1e-9));
          if (target > put.put) answers.push({ channel: put.channel, items: target - put.put });
          put.put = Math.max(put.put, target);
          if (ofRound === items) put.answered = whole;
        }
        turns.push({ take: { channel: each.channel, items: chunk }, puts: answers });
      }
      taken += items;
    }
  }
  return turns;
}

/** Equal parts of a whole number; the parts of all ranks add up to it. */
export function equalPart(items: number, ranks: number, rank: number): number {
  return Math.floor(((rank + 1) * items) / ranks) - Math.floor((rank * items) / ranks);
}
