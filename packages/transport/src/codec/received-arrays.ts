/**
 * The memory of received typed arrays: where it comes from, and how it comes back before garbage collection finds it.
 *
 * Fresh memory costs a page fault a page, several times the copy itself, and V8 answers many large ArrayBuffers with
 * frequent full collections. Whoever is done with a message says so with `releaseArrays`, and its memory serves the next.
 *
 * RA1 released arrays are detached: every view of them has length 0 from then on, so none ever shows another message.
 * RA2 memory that nobody releases is freed, or goes back to its sender, when it is collected; releasing is never needed.
 * RA3 idle memory never exceeds `maxIdleBytes`.
 */

/** What released memory goes back to. */
export type ReturnMemory = () => void;

const maxIdleBytes = 512 * 1024 * 1024;
/** An idle block is reused for areas down to this part of it. */
const minUse = 0.5;

/** Blocks that may be reused once their user releases them. */
const reusable = new WeakSet<ArrayBuffer>();
/** Memory that belongs to another process, and how to give it back. */
const foreign = new WeakMap<ArrayBuffer, ReturnMemory>();

/** Least recently released first. */
let idle: ArrayBuffer[] = [];
let idleBytes = 0;

/** Memory of at least this size; its content is undefined. */
export function takeMemory(sizeBytes: number): ArrayBuffer {
  for (let index = idle.length - 1; index >= 0; index--) {
    const block = idle[index]!;
    if (block.byteLength < sizeBytes || block.byteLength * minUse > sizeBytes) continue;
    idle.splice(index, 1);
    idleBytes -= block.byteLength;
    return block;
  }
  const block = Buffer.allocUnsafeSlow(sizeBytes).buffer as ArrayBuffer;
  reusable.add(block);
  return block;
}

/** Takes back memory of `takeMemory` whose content no code can reach any more; others' memory is left alone. */
export function giveMemory({ buffer }: ArrayBufferView): void {
  if (buffer instanceof ArrayBuffer && reusable.has(buffer)) keepIdle(buffer);
}

function keepIdle(block: ArrayBuffer): void {
  idle.push(block);
  idleBytes += block.byteLength;
  while (idleBytes > maxIdleBytes) idleBytes -= idle.shift()!.byteLength; // RA3
}

/** Notes that this memory is on loan; `giveBack` is called when it is released, and not when it is collected. */
export function noteForeignMemory(block: ArrayBuffer, giveBack: ReturnMemory): void {
  foreign.set(block, giveBack);
}

/**
 * Gives the memory of the large typed arrays in a received value back at once. They are detached: the caller, and
 * whoever else holds a view of them, finds them empty. Arrays that were not received are left alone.
 */
export function releaseArrays(value: unknown): void {
  release(value, 0);
}

const maxDepth = 130;

function release(value: unknown, depth: number): void {
  if (value === null || typeof value !== "object" || depth > maxDepth) return;
  if (ArrayBuffer.isView(value)) releaseBlock(value.buffer);
  else if (Array.isArray(value)) for (const item of value) release(item, depth + 1);
  else if (value instanceof Map) {
    for (const [key, item] of value) {
      release(key, depth + 1);
      release(item, depth + 1);
    }
  } else if (value instanceof Set) for (const item of value) release(item, depth + 1);
  else if (Object.getPrototypeOf(value) === Object.prototype) {
    for (const key in value) release((value as Record<string, unknown>)[key], depth + 1);
  }
}

function releaseBlock(block: ArrayBufferLike): void {
  if (!(block instanceof ArrayBuffer)) return;
  if (reusable.has(block)) {
    reusable.delete(block);
    const moved = structuredClone(block, { transfer: [block] }); // RA1
    reusable.add(moved);
    keepIdle(moved);
    return;
  }
  const giveBack = foreign.get(block);
  if (giveBack === undefined) return;
  foreign.delete(block);
  if (detach(block)) giveBack(); // RA1; otherwise RA2
}

/** Node refuses to transfer memory that native code lends; a byte stream detaches whatever is put into it. */
function detach(block: ArrayBuffer): boolean {
  try {
    let controller: ReadableByteStreamController | undefined;
    new ReadableStream({
      type: "bytes",
      start(created) {
        controller = created;
      },
    });
    controller!.enqueue(new Uint8Array(block));
    return block.byteLength === 0;
  } catch {
    return false;
  }
}

/** Frees all idle memory. */
export function dropIdleMemory(): void {
  idle = [];
  idleBytes = 0;
}
