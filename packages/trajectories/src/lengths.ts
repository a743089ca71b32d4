import { z } from "zod";

/** Predicted lengths in tokens. Checked in one loop, since a million of them would keep a schema library busy. */
export const Lengths = z.custom<readonly number[]>().superRefine((value, context) => {
  if (!Array.isArray(value)) {
    context.addIssue({ code: "custom", message: "expected an array of lengths" });
    return;
  }
  for (let i = 0; i < value.length; i++) {
    const length: unknown = value[i];
    if (typeof length === "number" && length >= 0 && length < Number.POSITIVE_INFINITY) continue;
    context.addIssue({ code: "custom", path: [i], message: "expected a finite number of at least 0" });
    return;
  }
});

export function sortedDescending(lengths: readonly number[]): Float64Array {
  return Float64Array.from(lengths).sort().reverse();
}

const indexBits = 2 ** 21;
const largestPacked = 2 ** 32;

/** Indices by descending length, ties by ascending index: the order in which groups are cut off. */
export function descendingOrder(lengths: readonly number[]): Int32Array {
  const n = lengths.length;
  const order = new Int32Array(n);
  if (n < indexBits && lengths.every((length) => Number.isInteger(length) && length < largestPacked)) {
    // Length and index packed into one double sort natively, many times faster than with a comparison function.
    const packed = new Float64Array(n);
    for (let i = 0; i < n; i++) packed[i] = lengths[i]! * indexBits + (n - 1 - i);
    packed.sort();
    for (let i = 0; i < n; i++) order[i] = n - 1 - (packed[n - 1 - i]! % indexBits);
    return order;
  }
  for (let i = 0; i < n; i++) order[i] = i;
  return order.sort((a, b) => lengths[b]! - lengths[a]! || a - b);
}
