/** Ranks of a group that share what each of them took. */
import { TreadleError } from "@treadle/contracts";
import { type Interference, neverDecreases } from "@treadle/trajectories";
import type { EngineConfig } from "../engine.ts";
import { placesOf, type RolloutOrderConfig } from "./order-config.ts";

type Config = EngineConfig & RolloutOrderConfig;

/** Whether ranks of a group share what each of them took. */
export const isShared = (config: RolloutOrderConfig): boolean => {
  const { placement, migrate } = sharingOf(config);
  return placement !== "own" || migrate !== "never";
};

export const sharingOf = ({ placement = "own", migrate, interference }: RolloutOrderConfig) => ({
  placement,
  // A group holds what was predicted wrongly until its end, unless that moves.
  migrate: migrate ?? (placement === "predicted" ? "pays" : "never"),
  F: interference ?? usualInterference,
});

const usualInterference: Interference = { type: "affine", slope: 0.04 };

/** Refuses ranks that cannot share, with the reason. */
export function checkSharing(config: Config): void {
  if (!isShared(config)) return;
  const { engine } = config;
  const { placement, migrate, F } = sharingOf(config);
  if (!neverDecreases(F) && (placement === "predicted" || migrate !== "never"))
    throw new TreadleError(
      "config.invalid",
      `'interference' falls somewhere, which 'placement' '${placement}' with 'migrate' '${migrate}' cannot place by: more company is never faster; raise the later values of its table`,
    );
  if (migrate === "scaled" && placement !== "predicted")
    throw new TreadleError(
      "config.invalid",
      `'migrate' is 'scaled' where 'placement' is '${placement}': it scales groups, which 'predicted' alone makes; set that, or migrate 'pays'`,
    );
  if (placesOf(config) === undefined)
    throw new TreadleError(
      "config.invalid",
      `'placement' is '${placement}' and 'migrate' '${migrate}', but an engine of kind '${engine?.kind}' makes its own batches, and does not tell which episodes are in them; set them to 'own' and 'never'`,
    );
}
