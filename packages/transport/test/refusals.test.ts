import fc from "fast-check";
import { expect, test } from "vitest";
import { Refusals } from "../src/link/refusals.ts";

test("each stranger is named at once and once a minute, and no refusal is left uncounted by then", () => {
  const strangers = fc.array(fc.record({ from: fc.constantFrom("a", "b"), afterMs: fc.nat(20_000) }), {
    maxLength: 200,
  });
  fc.assert(
    fc.property(strangers, (drawn) => {
      const refusals = new Refusals();
      const saidMs = new Map<string, number>();
      const unsaid = new Map<string, number>();
      let nowMs = 0;
      for (const { from, afterMs } of drawn) {
        nowMs += afterMs;
        const line = refusals.note(from, "no token", nowMs);
        const isDue = nowMs - (saidMs.get(from) ?? Number.NEGATIVE_INFINITY) >= 60_000;
        expect(line !== undefined).toBe(isDue);
        const count = isDue ? 0 : (unsaid.get(from) ?? 0) + 1;
        if (line !== undefined) {
          expect(line).toContain(`'${from}'`);
          const before = unsaid.get(from) ?? 0;
          if (before > 0) expect(line).toContain(`'${before + 1}' more`);
          saidMs.set(from, nowMs);
        }
        unsaid.set(from, count);
      }
    }),
  );
});

test("whoever has very many addresses makes few lines all the same, and all are counted together", () => {
  const refusals = new Refusals();
  const lines = Array.from({ length: 30_000 }, (_, i) =>
    refusals.note(`10.${i >> 8}.1.${i & 255}`, "no token", i * 10),
  );
  const said = lines.filter((line) => line !== undefined);
  expect(said.length).toBeLessThan(5 * 40);
  expect(said.some((line) => /'\d{4}' more connections from 'other addresses'/.test(line))).toBe(true);
});
