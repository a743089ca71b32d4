import type { FlowGraph } from "@treadle/contracts";

/** Items that a component takes for each of a step's batch, of the channel that it takes most from; 0 where it takes none. */
export function takenPerItem(name: string, { components, channels, batch }: FlowGraph): number {
  const takes = Object.values(components[name]?.methods ?? {}).flatMap((method) => method.takes);
  return Math.max(0, ...takes.map((channel) => (channels[channel]?.itemsPerStep ?? 0) / batch));
}

/**
 * Ranks share out whole items, so the busiest of them has no less than one, and what it has decides: devices that have
 * something to do, and items as if each had as many as the busiest.
 */
export function sharedOut(
  { devices, items }: { readonly devices: number; readonly items: number },
  devicesPerRank: number,
  perItem: number,
): { readonly devices: number; readonly items: number } {
  const taken = Math.max(1, Math.round(items * perItem));
  if (!Number.isFinite(taken)) return { devices, items };
  const ranks = Math.min(taken, Math.max(1, Math.floor(devices / devicesPerRank)));
  const busiest = (Math.ceil(taken / ranks) * ranks) / perItem;
  return { devices: ranks * devicesPerRank, items: Math.max(items, busiest) };
}
