import { PluginRegistry } from "../plugin-registry.ts";
import { arithmeticReward } from "./arithmetic.ts";
import type { RewardRegistry } from "./reward.ts";

/** The rewards that Treadle ships. */
export const builtInRewards: RewardRegistry = new PluginRegistry("reward", [arithmeticReward]);
