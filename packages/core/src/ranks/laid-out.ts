/** What a plan leaves as it is of a group's ranks. Pure. */
import type { RankPlacement } from "@treadle/contracts";

type Placed = { readonly index: number; readonly place: Readonly<RankPlacement> };

export function isLaidOutAs(ranks: readonly Placed[], placements: readonly RankPlacement[] = []): boolean {
  return ranks.length === placements.length && ranks.every((rank) => keepsDevices(rank, placements));
}

/** Those that go on while their group is laid out anew. */
export function stayingRanks<Rank extends Placed>(
  ranks: readonly Rank[],
  placements: readonly RankPlacement[] = [],
  { resizes, restart }: { readonly resizes: boolean; readonly restart: "rank" | "group" },
): Rank[] {
  return resizes && restart === "rank" ? ranks.filter((rank) => keepsDevices(rank, placements)) : [];
}

/** Devices are of one node; what has none keeps its node. */
function keepsDevices({ index, place: { node, devices } }: Placed, placements: readonly RankPlacement[]): boolean {
  const placed = placements[index];
  return devices.join() === placed?.devices.join() && (devices.length > 0 || node === placed.node);
}
