import { expect, test } from "vitest";
import { planVirtualCluster } from "../src/index.ts";
import { chainProfile } from "./hand-made.ts";

test("a virtual cluster is planned within placement.wishes", () => {
  const profile = chainProfile(
    [
      { name: "rollout", perItem: 4 },
      { name: "actor", perItem: 3 },
    ],
    32,
  );
  const options = { devices: 4, mode: "auto" as const, maxStaleness: 0 };
  expect(planVirtualCluster(profile, options).plan.mode).toBe("temporal");
  const { plan } = planVirtualCluster(profile, { ...options, wishes: { apart: [["rollout", "actor"]] } });
  expect(plan.mode).toBe("spatial");
  const alone = { ...options, devices: 1, wishes: { apart: [["rollout", "actor"]] } };
  expect(() => planVirtualCluster(profile, alone)).toThrow("no plan is possible");
});
