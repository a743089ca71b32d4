/** Whatever arrives, a decoder takes it or refuses it with the error that it documents, soon and in little memory. */
import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { anyBytes, anyText, anyValue, damagedBytes, damagedText, damagedValue, type Garbage } from "./damage.ts";
import { byteRows, type Row, textRows, valueRows } from "./decoders.ts";

const numRuns = Number(process.env["FUZZ_RUNS"] ?? 60);
/** Of the processor, whatever else runs: far more than any of these inputs takes, and less than work that grows with the square of one. */
const maxInputMs = 3000;
const maxGrowthBytes = 512 * 2 ** 20;

async function judge<Input>({ name, decode, refuses }: Row<Input>, input: Input): Promise<void> {
  const began = process.cpuUsage();
  const before = process.memoryUsage.rss();
  try {
    await decode(input);
  } catch (error) {
    const isDocumented = error instanceof TreadleError && refuses.includes(error.code);
    if (!isDocumented) throw new Error(`${name} threw what it does not document: ${String(error)}`, { cause: error });
  }
  const { user, system } = process.cpuUsage(began);
  expect((user + system) / 1000, `${name} took too long`).toBeLessThan(maxInputMs);
  expect(process.memoryUsage.rss() - before, `${name} took too much memory`).toBeLessThan(maxGrowthBytes);
  expect(({} as { polluted?: boolean }).polluted, `${name} changed the prototype of all objects`).toBeUndefined();
}

function suite<Input>(
  rows: readonly Row<Input>[],
  garbage: Garbage<Input>,
  damaged: (sound: fc.Arbitrary<Input>) => fc.Arbitrary<Input>,
): void {
  test.each(rows.map((row) => [row.name, row] as const))("%s", async (_, row) => {
    const any = fc.oneof(garbage.random, row.sound, { arbitrary: damaged(row.sound), weight: 3 });
    await fc.assert(
      fc.asyncProperty(any, (input) => judge(row, input)),
      { numRuns },
    );
    if (row.isOwn) return;
    for (const [what, make] of [...garbage.hostile, ...(row.hostile ?? [])]) {
      const input = make();
      await judge({ ...row, name: `${row.name} given ${what}` }, input);
    }
  });
}

describe("decoders of bytes", () => suite(byteRows, anyBytes, damagedBytes));
describe("decoders of text", () => suite(textRows, anyText, damagedText));
describe("decoders of values", () => suite(valueRows, anyValue, damagedValue));

test("what is damaged was sound: the schemas take most of what is made for them", () => {
  const share = (row: Row<unknown>): number => {
    const samples = fc.sample(row.sound, { numRuns: 60 });
    const taken = samples.filter((sample) => {
      try {
        row.decode(sample);
        return true;
      } catch {
        return false;
      }
    });
    return taken.length / samples.length;
  };
  const shares = valueRows.map((row) => [row.name, share(row)] as const);
  expect(shares.filter(([, taken]) => taken > 0.5).length / shares.length).toBeGreaterThan(0.75);
});
