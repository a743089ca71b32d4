import type { LossSpec } from "@treadle/contracts";

/** What training is measured with: GRPO's loss, without a KL term and an entropy bonus. */
export const policyGradient = {
  type: "policy-gradient",
  ratio: "token",
  clipLow: 0.2,
  clipHigh: 0.28,
  klCoefficient: 0,
  entropyCoefficient: 0,
} as const satisfies LossSpec;
