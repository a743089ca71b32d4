/** Rules by which runs compute beside each other where nobody has measured what that costs: what `CoRunner` is compared with. */
import type { SharingPolicy } from "@treadle/core";
import { componentOf } from "./shared-devices.ts";

/** `rollouts`: of two that generate, as servers of several models do; `always`: whoever comes, two at once on a device. */
export type PlainSharing = "rollouts" | "always";

export const plainSharing = (rule: PlainSharing): SharingPolicy => ({
  version: 0,
  worked: () => {},
  gone: () => {},
  slowdown: () => 1,
  sharesNow: ({ waiter, holders }) => ({
    shares:
      rule === "always" ||
      [waiter, ...holders].every(({ work }) => work !== undefined && componentOf(work) === "rollout"),
    why: `as '${rule}' has it`,
  }),
});
