/**
 * A checksum of 32 bits, by its reversed polynomial: of `data`, or of what comes before it, whose checksum is `before`, and it. In
 * tables of our own, since Node has one polynomial alone, and that from 20.15 on.
 */
function checksumBy(polynomial: number): (data: Uint8Array, before?: number) => number {
  const table = Uint32Array.from({ length: 256 }, (_, byte) => {
    let rest = byte;
    for (let bit = 0; bit < 8; bit++) rest = rest & 1 ? (rest >>> 1) ^ polynomial : rest >>> 1;
    return rest;
  });
  return (data, before = 0) => {
    let sum = ~before;
    for (const byte of data) sum = (table[(sum ^ byte) & 0xff] as number) ^ (sum >>> 8);
    return ~sum >>> 0;
  };
}

/** As zlib computes it. */
export const crc32 = checksumBy(0xedb88320);
/** Castagnoli's. */
export const crc32c = checksumBy(0x82f63b78);
