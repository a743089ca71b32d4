/**
 * Buddy intervals of devices (ARL-Tangram §5.3): a chunk is `size` neighbouring devices of one node, `size` a power of
 * two and `start` a multiple of it, so a chunk splits into two chunks of half its size and two buddies join again.
 */
export type Chunk = { readonly node: number; readonly start: number; readonly size: number };

/** Sizes a chunk may have, ascending. */
export const chunkSizes = [1, 2, 4, 8] as const;

/** The interval that `units` devices take; undefined above the largest chunk. */
export function chunkSizeFor(units: number): number | undefined {
  return chunkSizes.find((size) => size >= units);
}

/**
 * Free capacity in chunks of at least each size: `capacity[a]` devices lie in chunks of 2^a or more.
 *
 * Requests fit into the chunks exactly when, for every size s, the requests of size s or more sum to at most the
 * devices in chunks of size s or more. Necessary: such a request lies inside such a chunk. Sufficient: placed largest
 * first, what they leave of those chunks is a multiple of s, all of it in aligned intervals of s.
 */
export function capacities(chunks: readonly Chunk[]): number[] {
  return chunkSizes.map((size) => chunks.reduce((sum, c) => sum + (c.size >= size ? c.size : 0), 0));
}

/** Cuts the aligned interval of `size` devices at `start` out of the chunk; the rest comes back as chunks. */
export function carveChunk(chunk: Chunk, start: number, size: number): Chunk[] {
  const rest: Chunk[] = [];
  let { start: left, size: width } = chunk;
  while (width > size) {
    width /= 2;
    const upper = start >= left + width;
    rest.push({ node: chunk.node, start: upper ? left : left + width, size: width });
    if (upper) left += width;
  }
  return rest;
}

/**
 * Gives every request an aligned interval: largest first, each from the smallest chunk that holds it. Undefined when
 * they do not fit. The result is in the order of the requests.
 */
export function packChunks(chunks: readonly Chunk[], sizes: readonly number[]): Chunk[] | undefined {
  const free = new Map<number, Chunk[]>(chunkSizes.map((size) => [size, []]));
  const order = (a: Chunk, b: Chunk): number => b.node - a.node || b.start - a.start;
  for (const chunk of [...chunks].sort(order)) free.get(chunk.size)?.push(chunk);
  const placed = new Array<Chunk>(sizes.length);
  const largestFirst = sizes.map((_, i) => i).sort((a, b) => sizes[b]! - sizes[a]! || a - b);
  for (const i of largestFirst) {
    const size = sizes[i]!;
    const from = chunkSizes.find((s) => s >= size && free.get(s)!.length > 0);
    if (from === undefined) return undefined;
    const chunk = free.get(from)!.pop()!;
    for (const piece of carveChunk(chunk, chunk.start, size)) free.get(piece.size)!.push(piece);
    placed[i] = { node: chunk.node, start: chunk.start, size };
  }
  return placed;
}

/** Adds a freed chunk and joins buddies as far as they go, never across the node's own chunks of `largest` devices. */
export function joinChunk(free: readonly Chunk[], freed: Chunk, largest = 8): Chunk[] {
  let chunk = freed;
  let rest = [...free];
  while (chunk.size < largest) {
    const buddyStart = chunk.start % (2 * chunk.size) === 0 ? chunk.start + chunk.size : chunk.start - chunk.size;
    const { node, size } = chunk;
    const buddy = rest.find((c) => c.node === node && c.size === size && c.start === buddyStart);
    if (buddy === undefined) break;
    rest = rest.filter((c) => c !== buddy);
    chunk = { node, start: Math.min(chunk.start, buddyStart), size: 2 * size };
  }
  return [...rest, chunk];
}
