import { PluginRegistry } from "@treadle/learning";
import { cartPoleSwingUp } from "./cart-pole-swing-up.ts";
import type { EnvironmentRegistry } from "./environment.ts";
import { invertedPendulum } from "./inverted-pendulum.ts";

/** The environments that Treadle ships. */
export const builtInEnvironments: EnvironmentRegistry = new PluginRegistry("environment", [
  invertedPendulum,
  cartPoleSwingUp,
]);
