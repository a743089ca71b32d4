/** Half of what servers take in one message, so that there is room for what stands beside the entries. */
export const maxEventBytes = 400_000;

/** In their order, as few to an event as its size asks for; an entry that is larger by itself goes alone. */
export function* eventParts<T>(entries: readonly T[]): Generator<T[]> {
  let part: T[] = [];
  let partBytes = 0;
  for (const entry of entries) {
    const sizeBytes = Buffer.byteLength(JSON.stringify(entry)) + 1; // and a comma
    if (part.length > 0 && partBytes + sizeBytes > maxEventBytes) {
      yield part;
      part = [];
      partBytes = 0;
    }
    part.push(entry);
    partBytes += sizeBytes;
  }
  if (part.length > 0) yield part;
}
