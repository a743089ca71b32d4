import type { FlowGraph, ObservedCall } from "@treadle/contracts";
import { inFlowOrder } from "../flow-order.ts";

type Edge = FlowGraph["edges"][number];
type Methods = FlowGraph["components"][string]["methods"];

/**
 * The flow graph of a workflow, from the calls of whole steps (RLinf §3.4 traces the first iterations likewise). Pure.
 *
 * Components come in the order of the flow: producers before consumers; members of a cycle, and those of which none feeds the
 * other, in the order in which the workflow calls them. So they ask for devices. Calls outside of steps are preparation and count
 * for nothing.
 */
export function traceFlow(calls: readonly ObservedCall[], batch: number): FlowGraph {
  // They are observed in the order in which they end.
  const inSteps = calls.filter((call) => call.step !== undefined).sort((a, b) => a.sequence - b.sequence);
  const numSteps = Math.max(1, new Set(inSteps.map((call) => call.step)).size);
  const components = new Map<string, Map<string, { calls: number; takes: Set<string>; puts: Set<string> }>>();
  const channels = new Map<
    string,
    {
      producers: Set<string>;
      consumers: Set<string>;
      taken: number;
      put: number;
      bytes: number;
      takes: Map<string, number>;
    }
  >();
  for (const call of inSteps) {
    const methods = getOr(components, call.component, () => new Map());
    const method = getOr(methods, call.method, () => ({ calls: 0, takes: new Set<string>(), puts: new Set<string>() }));
    if (call.rank === 0) method.calls++;
    for (const { channel, role, items, bytes, times } of call.channels) {
      const moved = getOr(channels, channel, () => ({
        producers: new Set<string>(),
        consumers: new Set<string>(),
        taken: 0,
        put: 0,
        bytes: 0,
        takes: new Map(),
      }));
      if (role === "source") {
        method.takes.add(channel);
        moved.consumers.add(call.component);
        moved.taken += items;
        moved.bytes += bytes;
        const rank = `${call.component}/${call.rank}`;
        moved.takes.set(rank, (moved.takes.get(rank) ?? 0) + times);
      } else {
        method.puts.add(channel);
        moved.producers.add(call.component);
        moved.put += items;
      }
    }
  }
  const edges: Edge[] = [...channels].flatMap(([channel, { producers, consumers, taken, put, bytes }]) =>
    [...producers].flatMap((from) =>
      [...consumers].map((to) => ({
        from,
        to,
        channel,
        itemsPerStep: Math.max(taken, put) / numSteps / (producers.size * consumers.size),
        bytesPerStep: bytes / numSteps / (producers.size * consumers.size),
      })),
    ),
  );
  const groups = inFlowOrder([...components.keys()], edges);
  const cycles = groups.filter((group) => group.length > 1);
  const isInCycle = (...ends: ReadonlySet<string>[]) =>
    cycles.some((members) => ends.every((names) => members.some((name) => names.has(name))));
  return {
    batch,
    components: Object.fromEntries(
      groups.flat().map((name) => [name, { methods: describeMethods(components.get(name) ?? new Map(), numSteps) }]),
    ),
    channels: Object.fromEntries(
      [...channels].map(([channel, { producers, consumers, taken, put, bytes, takes }]) => [
        channel,
        {
          producers: [...producers],
          consumers: [...consumers],
          itemsPerStep: Math.max(taken, put) / numSteps,
          bytesPerStep: bytes / numSteps,
          ...(isInCycle(producers, consumers) ? { takesPerStep: Math.max(...takes.values()) / numSteps } : {}),
        },
      ]),
    ),
    edges,
    calls: directCalls(inSteps, numSteps),
    cycles,
  };
}

/** Ranks of one component among themselves are its own affair. */
function directCalls(calls: readonly ObservedCall[], numSteps: number): FlowGraph["calls"] {
  const found = new Map<string, { from: string; to: string; method?: string | undefined; times: number }>();
  for (const { component: from, peers } of calls) {
    for (const { component: to, method, times } of peers) {
      if (to === from) continue;
      const key = `${from} ${to} ${method ?? ""}`;
      found.set(key, { from, to, method, times: (found.get(key)?.times ?? 0) + times });
    }
  }
  return [...found.values()].map(({ from, to, method, times }) => ({
    from,
    to,
    ...(method === undefined ? {} : { method }),
    timesPerStep: times / numSteps,
  }));
}

function describeMethods(
  methods: ReadonlyMap<string, { calls: number; takes: ReadonlySet<string>; puts: ReadonlySet<string> }>,
  numSteps: number,
): Methods {
  return Object.fromEntries(
    [...methods].map(([name, { calls, takes, puts }]) => [
      name,
      { callsPerStep: calls / numSteps, takes: [...takes], puts: [...puts] },
    ]),
  );
}

function getOr<K, V>(map: Map<K, V>, key: K, make: () => V): V {
  const found = map.get(key) ?? make();
  map.set(key, found);
  return found;
}
