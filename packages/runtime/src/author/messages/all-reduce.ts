/**
 * The sum of an array over ranks: each of them adds up a shard, in the order of the ranks, and gives all others its total. So a
 * rank sends and receives about twice the array, however many there are, and whatever order messages arrive in, all have the
 * same bits.
 */
import { TreadleError } from "@treadle/contracts";
import { releaseArrays, takeMemory } from "@treadle/transport";

type Numbers = Float32Array | Float64Array;
type Part<T> = { readonly length: number; readonly part: T };

export type AllReducePorts = {
  readonly component: string;
  readonly rank: number;
  readonly worldSize: number;
  /** Gives a rank its part of this one's numbers. */
  readonly give: (rank: number, part: unknown) => Promise<void>;
  readonly take: (rank: number) => Promise<unknown>;
  /** Gives all other ranks the total of this one's shard. */
  readonly spread: (total: unknown) => Promise<void>;
  readonly takeTotal: (rank: number) => Promise<unknown>;
};

export async function allReduceSum<T extends Numbers>(ports: AllReducePorts, values: T): Promise<T> {
  const { rank, worldSize, give, takeTotal } = ports;
  const shards = shardsOf(values.length, worldSize);
  const partOf = ({ from, to }: Shard): Part<T> => ({ length: values.length, part: values.subarray(from, to) as T });
  // Every element is written before anybody sees it.
  const Kind = values.constructor as new (memory: ArrayBuffer, offset: number, length: number) => T;
  const result = new Kind(takeMemory(values.byteLength), 0, values.length);
  const mine = shards[rank];
  const own = mine && addUp(ports, partOf(mine), result.subarray(mine.from, mine.to) as T);
  const [totals] = await Promise.all([
    Promise.all(shards.map((_, owner) => (owner === rank ? own : takeTotal(owner)) as Promise<T>)),
    ...shards.map((shard, owner) => (owner === rank ? undefined : give(owner, partOf(shard)))),
  ]);
  for (const [owner, total] of totals.entries()) {
    if (owner === rank) continue;
    result.set(total, (shards[owner] as Shard).from);
    releaseArrays(total);
  }
  return result;
}

/** The total of this rank's shard, in `total`, once all have it. */
async function addUp<T extends Numbers>(ports: AllReducePorts, own: Part<T>, total: T): Promise<T> {
  const { component, rank, worldSize, take, spread } = ports;
  const all = await Promise.all(
    Array.from({ length: worldSize }, (_, each) => (each === rank ? own : (take(each) as Promise<Part<T>>))),
  );
  const other = all.find(({ length }) => length !== own.length);
  if (other) {
    throw new TreadleError(
      "workflow.invalid",
      `ranks of '${component}' reduce arrays of different lengths, '${own.length}' and '${other.length}'; give each as many numbers`,
    );
  }
  sumInOrder(
    all.map(({ part }) => part),
    total,
  );
  for (const [each, { part }] of all.entries()) if (each !== rank) releaseArrays(part);
  await spread(total);
  return total;
}

/** Elements of one array, from `from` up to `to`. */
type Shard = { readonly from: number; readonly to: number };

/** Fewer elements than this cost no less than a message of their own. */
const minShardLength = 16_384;

/**
 * One shard for each of the first ranks: all of an array together, none longer than another by more than one element. A short
 * array has fewer shards than there are ranks, one at least.
 */
export function shardsOf(length: number, worldSize: number): Shard[] {
  const numShards = Math.min(worldSize, Math.max(1, Math.floor(length / minShardLength)));
  const start = (index: number) => Math.floor((index * length) / numShards);
  return Array.from({ length: numShards }, (_, index) => ({ from: start(index), to: start(index + 1) }));
}

/** The element-wise sum, added up in the order of the parts: the same bits whoever adds. */
function sumInOrder<T extends Numbers>([first, ...others]: readonly T[], sum: T): void {
  sum.set(first as T);
  for (const part of others) for (let i = 0; i < sum.length; i++) sum[i] = (sum[i] as number) + (part[i] as number);
}
