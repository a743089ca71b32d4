import fc from "fast-check";
import { expect, test } from "vitest";
import { type Heard, NodeInquiry } from "../../src/membership/node-inquiry.ts";

const silentLooks = 5;
const looks = fc.array(
  fc.record({
    heard: fc.constantFrom<Heard>("answer", "nobody", "nothing", "nothing", "nothing"),
    couldHear: fc.boolean(),
  }),
  { maxLength: 40 },
);

test("MB4: an agent is there as soon as it says anything, hangs and has gone only by an unbroken row of looks that could have told", () => {
  fc.assert(
    fc.property(looks, (all) => {
      const inquiry = new NodeInquiry(silentLooks);
      const counted: Heard[] = [];
      for (const { heard, couldHear } of all) {
        const verdict = inquiry.looked(heard, couldHear);
        if (couldHear || heard === "answer") counted.push(heard);
        const row = (what: Heard, length: number) =>
          counted.length >= length && counted.slice(-length).every((each) => each === what);
        const expected =
          heard === "answer"
            ? "there"
            : !couldHear
              ? "look again"
              : row("nothing", silentLooks)
                ? "hangs"
                : row("nobody", 3)
                  ? "gone"
                  : "look again";
        expect(verdict).toBe(expected);
        if (verdict !== "look again") return;
      }
    }),
  );
});
