import { arithmeticReward } from "./arithmetic.ts";
import { RewardRegistry } from "./reward.ts";

/** The rewards that Treadle ships. */
export const builtInRewards = new RewardRegistry([arithmeticReward]);
