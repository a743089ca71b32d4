import { PluginRegistry } from "../plugin-registry.ts";
import { arithmeticReward } from "./arithmetic.ts";
import { exactReward } from "./exact.ts";
import { numericReward } from "./numeric.ts";
import { regexReward } from "./regex.ts";
import type { RewardRegistry } from "./reward.ts";

/** The rewards that need nothing but a prompt and a completion. */
export const builtInRewards: RewardRegistry = new PluginRegistry("reward", [
  arithmeticReward,
  exactReward,
  numericReward,
  regexReward,
]);
