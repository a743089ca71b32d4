import type { Plan } from "@treadle/contracts";
import { expect, test } from "vitest";
import { withoutVainBounds } from "../../../src/runner/placement/vain-bounds.ts";

const plan: Plan = {
  mode: "hybrid",
  components: {
    rollout: { ranks: [{ node: "n0", devices: ["cpu:0"] }] },
    inference: { ranks: [{ node: "n0", devices: ["cpu:0"] }] },
    actor: { ranks: [{ node: "n0", devices: ["cpu:1"] }] },
  },
  granularity: { default: "all", channels: {} },
  capacity: { groups: 8 },
  maxStaleness: 0,
  sharing: [{ components: ["rollout", "inference"], devices: ["cpu:0"], fitTogether: false }],
  explanation: [],
};
const planned = { plan, why: ["it is the fastest"] };

test("a plan in which a component keeps the devices that it shares bounds no channel, and says why", () => {
  const carriedOut = withoutVainBounds(planned, (component) => component === "rollout");
  const { capacity: _, ...unbounded } = plan;
  expect(carriedOut.plan).toStrictEqual(unbounded);
  expect(carriedOut.why).toEqual([
    "it is the fastest",
    "no channel is bounded: 'rollout' keeps its devices while it waits for room",
  ]);
});

test("bounds stay where nobody keeps devices, or whoever does shares none", () => {
  expect(withoutVainBounds(planned, () => false)).toBe(planned);
  expect(withoutVainBounds(planned, (component) => component === "actor")).toBe(planned);
});
