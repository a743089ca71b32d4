import fc from "fast-check";
import { expect, test } from "vitest";
import { Neighbours, othersOn, whyTaken } from "../../../src/runner/nodes/shared-nodes.ts";

const run = fc.constantFrom("own", "x", "y", "z");
const occupancy = fc.record(
  {
    workers: fc.dictionary(run, fc.array(fc.constantFrom("rollout/0", "rollout/1", "actor/0"), { maxLength: 3 })),
    exclusiveTo: run,
  },
  { requiredKeys: ["workers"] },
);

test("NS6: a run keeps off nodes that are another's alone, and off any shared one if it asks for that", () => {
  fc.assert(
    fc.property(occupancy, fc.boolean(), (node, exclusive) => {
      const why = whyTaken(node, { runId: "own", exclusive });
      const isAnothers = node.exclusiveTo !== undefined && node.exclusiveTo !== "own";
      const hasOthers = Object.entries(node.workers).some(([name, list]) => name !== "own" && list.length > 0);
      expect(why !== undefined).toBe(isAnothers || (exclusive && hasOthers));
    }),
  );
});

test("of each run that comes to a node it is said once, and again when it has left and come back", () => {
  fc.assert(
    fc.property(fc.array(occupancy, { minLength: 1, maxLength: 12 }), (history) => {
      const neighbours = new Neighbours();
      let before: string[] = [];
      for (const info of history) {
        const said = neighbours.look([{ name: "a", info }], "own");
        const now = othersOn(info, "own").map(([name]) => name);
        const fresh = now.filter((name) => !before.includes(name));
        expect(said.length).toBe(fresh.length);
        for (const name of fresh) expect(said.some((line) => line.includes(`'${name}'`))).toBe(true);
        before = now;
      }
    }),
  );
});
