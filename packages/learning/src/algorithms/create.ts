import type { Algorithm } from "./algorithm.ts";
import { parseAlgorithmConfig } from "./config.ts";
import { cispo, dapo, drGrpo, grpo, gspo, rloo } from "./group-relative.ts";
import { ppo, reinforcePlusPlus } from "./per-token.ts";

/** The algorithm of a configuration, for example `{ name: "grpo" }`. Throws `config.invalid`; `path` is where it stands. */
export function createAlgorithm(value: unknown, path = "algorithm"): Algorithm {
  const config = parseAlgorithmConfig(value, path);
  switch (config.name) {
    case "grpo":
      return grpo(config);
    case "dr-grpo":
      return drGrpo(config);
    case "dapo":
      return dapo(config);
    case "gspo":
      return gspo(config);
    case "cispo":
      return cispo(config);
    case "rloo":
      return rloo(config);
    case "reinforce++":
    case "reinforce++-baseline":
      return reinforcePlusPlus(config);
    case "ppo":
      return ppo(config);
  }
}
