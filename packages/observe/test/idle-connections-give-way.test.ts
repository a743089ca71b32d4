import fc from "fast-check";
import { expect, test } from "vitest";
import { ConnectionTurns } from "../src/http-connections.ts";

const maxConnections = 4;
const events = fc.array(
  fc.record({
    type: fc.constantFrom("admit" as const, "admit" as const, "asked" as const, "answered" as const, "closed" as const),
    which: fc.nat(15),
  }),
  { maxLength: 60 },
);

test("HC1: the bound holds, the newest is let in, and who gives way is the oldest that asks nothing, or else the oldest", () => {
  fc.assert(
    fc.property(events, (drawn) => {
      const turns = new ConnectionTurns<number>(maxConnections);
      let open: { id: number; numAsked: number }[] = [];
      let next = 0;
      for (const { type, which } of drawn) {
        const known = open.find(({ id }) => id === which);
        if (type === "admit") {
          const evicted = turns.admit(next);
          const first = open.find(({ numAsked }) => numAsked === 0) ?? open[0];
          expect(evicted).toBe(open.length < maxConnections ? undefined : first?.id);
          open = [...open.filter(({ id }) => id !== evicted), { id: next++, numAsked: 0 }];
        } else if (type === "closed") {
          turns.closed(which);
          open = open.filter((each) => each !== known);
        } else if (type === "asked") {
          turns.asked(which);
          if (known) known.numAsked++;
        } else if (known === undefined || known.numAsked > 0) {
          turns.answered(which);
          if (known) known.numAsked--;
        }
        expect(turns.size).toBe(open.length);
        expect(turns.size).toBeLessThanOrEqual(maxConnections);
      }
    }),
  );
});
