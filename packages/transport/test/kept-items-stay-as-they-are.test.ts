import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import fc from "fast-check";
import { afterEach, describe, expect, it } from "vitest";
import { placeItem } from "../src/codec/codec.ts";
import { dropIdleMemory, giveMemory, takeMemory } from "../src/codec/received-arrays.ts";
import { PayloadReader, PayloadStore, releaseArrays, removeSegments } from "../src/index.ts";
import { sharedMemory } from "../src/memory/shared-memory.ts";
import { until } from "./support/until.ts";

const prefix = `treadle-kept-test-${process.pid}-`;
/** What is copied out of a segment, and what is seen in place. */
const lengths = [1000, 7 * 2 ** 20];

setFlagsFromString("--expose-gc");
const collect = runInNewContext("gc") as () => void;

afterEach(() => void removeSegments(prefix));

function setUp() {
  const store = new PayloadStore(prefix);
  const read: string[] = [];
  const reader = new PayloadReader(prefix, (segment) => read.push(segment));
  const put = (length: number, value: number) => {
    const item = placeItem(new Float32Array(length).fill(value));
    const segment = store.write(item) as string;
    return { segment, see: () => reader.read(segment, item.sizeBytes) as Float32Array };
  };
  return { store, read, put };
}

describe.skipIf(sharedMemory() === undefined)("items that stay with their producer", () => {
  it("PY1: a segment that was not given back is never written again, and one that was is", () => {
    const step = fc.record({ isPut: fc.boolean(), at: fc.nat(10), length: fc.constantFrom(20_000, 21_000, 40_000) });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 25 }), (steps) => {
        const { store, put } = setUp();
        const live: { segment: string; see: () => Float32Array; value: number }[] = [];
        for (const [value, { isPut, at, length }] of steps.entries()) {
          if (isPut) {
            const made = put(length, value);
            expect(live.map(({ segment }) => segment)).not.toContain(made.segment);
            live.push({ ...made, value });
          } else {
            const [given] = live.splice(at % Math.max(1, live.length), 1);
            if (given) store.reuse([given.segment]);
          }
          for (const { see, value: own } of live) expect(see().every((each) => each === own)).toBe(true);
        }
        const first = put(20_000, -1);
        store.reuse([first.segment]);
        expect(put(20_000, -2).segment).toBe(first.segment);
        store.close();
      }),
      { numRuns: 15 },
    );
  });

  it.each(lengths)("PY3: what one reader of %i numbers writes, no other sees", (length) => {
    const { store, put } = setUp();
    const { see } = put(length, 1);
    const [mine, other] = [see(), see()];
    mine.fill(2);
    expect([other[0], other.at(-1), see()[0]]).toEqual([1, 1, 1]);
    expect([mine[0], mine.at(-1)]).toEqual([2, 2]);
    store.close();
  });

  it("PY4: each read is told once: at once where it was a copy, else when its arrays are released", () => {
    const { store, read, put } = setUp();
    const [small, large] = lengths.map((length) => put(length, 1));
    small?.see();
    expect(read).toEqual([small?.segment]);
    const values = [large?.see(), large?.see()];
    expect(read).toHaveLength(1);
    for (const value of [...values, ...values]) releaseArrays(value);
    expect(read.slice(1)).toEqual([large?.segment, large?.segment]);
    store.close();
  });

  it("PY4, RA2: a read that nobody releases is told when its memory is collected, and not before", async () => {
    const { store, read, put } = setUp();
    const large = put(lengths[1] as number, 1);
    // In a function of its own, so that nothing of this one still names the array.
    const forget = (): void => expect(large.see()[0]).toBe(1);
    forget();
    const kept = large.see();
    await until(() => {
      collect();
      return read.length > 0;
    });
    collect();
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(read).toEqual([large.segment]);
    expect(kept[0]).toBe(1);
    store.close();
  });
});

it("RA3: of memory that is given back no more stays idle than its bound", () => {
  dropIdleMemory();
  const blockBytes = 100 * 2 ** 20;
  const blocks = Array.from({ length: 8 }, () => new Uint8Array(takeMemory(blockBytes)));
  const given = new Set(blocks.map(({ buffer }) => buffer));
  for (const block of blocks) giveMemory(block);
  const again = blocks.map(() => takeMemory(blockBytes));
  expect(again.filter((block) => given.has(block))).toHaveLength(5); // of 512 MiB
  dropIdleMemory();
});
