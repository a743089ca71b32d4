import fc from "fast-check";
import { expect, test } from "vitest";
import { Exchange, type Exchanged } from "../../src/pool/exchange.ts";

/** of each step: which side, what it does, and which message on the way is meant */
const steps = fc.array(
  fc.record({
    side: fc.nat(1),
    does: fc.constantFrom("say" as const, "send" as const, "deliver" as const, "repeat" as const, "lose" as const),
    which: fc.nat(20),
  }),
  { maxLength: 200 },
);

test("whatever is lost, late, repeated or out of order, what is said is heard once and in order (PS5)", () => {
  fc.assert(
    fc.property(steps, (all) => {
      const ends = [new Exchange<number, number>(), new Exchange<number, number>()] as const;
      const said: number[][] = [[], []];
      const heard: number[][] = [[], []];
      // Messages to each side.
      const way: Exchanged<number>[][] = [[], []];
      const deliver = (side: number, message: Exchanged<number>) =>
        void heard[side]!.push(...ends[side as 0 | 1].receive(message));
      for (const { side, does, which } of all) {
        const coming = way[side]!;
        const at = which % Math.max(1, coming.length);
        if (does === "say") {
          said[side]!.push(said[side]!.length);
          ends[side as 0 | 1].say(said[side]!.length - 1);
        } else if (does === "send") way[1 - side]!.push(ends[side as 0 | 1].message());
        else if (coming.length > 0 && does === "repeat") deliver(side, coming[at]!);
        else if (coming.length > 0) {
          const [message] = coming.splice(at, 1);
          if (does === "deliver") deliver(side, message!);
        }
        expect(heard[1], "heard so far").toEqual(said[0]!.slice(0, heard[1]!.length));
        expect(heard[0], "heard so far").toEqual(said[1]!.slice(0, heard[0]!.length));
      }
      // Two ways there and back without loss, and all is heard and known to be.
      for (let round = 0; round < 2; round++)
        for (const side of [0, 1] as const) deliver(1 - side, ends[side].message());
      expect(heard).toEqual([said[1], said[0]]);
      expect(ends.some(({ isOpen }) => isOpen)).toBe(false);
    }),
  );
});

test("a message that takes for heard what was not is passed over", () => {
  const end = new Exchange<string, string>();
  expect(end.receive({ from: 1, said: ["second"], heard: 5 })).toEqual([]);
  expect(end.message()).toEqual({ from: 0, said: [], heard: 0 });
});
