import { type Moments, mergeMoments } from "@treadle/learning";
import type { WorkerContext } from "@treadle/runtime";

/** The moments of what all ranks have, the same on each; every rank of the group calls it. */
export async function momentsOverRanks(
  messages: Pick<WorkerContext<unknown>["messages"], "gather" | "broadcast">,
  worldSize: number,
  own: Moments,
): Promise<Moments> {
  if (worldSize === 1) return own;
  const parts = await messages.gather(own);
  return messages.broadcast(parts ? mergeMoments(parts) : own);
}
