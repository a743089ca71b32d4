/** Ranks of a group that differ in size, or share what each of them took. */
import { TreadleError } from "@treadle/contracts";
import type { Interference } from "@treadle/trajectories";
import { type EngineConfig, tokenSecondsOf } from "../engine.ts";
import type { RolloutOrderConfig } from "./order-config.ts";

type Config = EngineConfig & RolloutOrderConfig;

/** Whether ranks of a group share what each of them took. */
export const isShared = (config: RolloutOrderConfig): boolean => {
  const { placement, migrate } = sharingOf(config);
  return placement !== "own" || migrate !== "never";
};

export const sharingOf = ({ placement = "own", migrate = "never", interference }: RolloutOrderConfig) => ({
  placement,
  migrate,
  F: interference ?? usualInterference,
});

const usualInterference: Interference = { type: "affine", slope: 0.04 };

/** Of each rank, the seconds that a token takes alone as far as the configuration says; undefined where ranks are equal. */
export function tokenTimesOf(config: Config): (number | undefined)[] | undefined {
  return config.degrees?.map((degree) => tokenSecondsOf(config, degree) || undefined);
}

/** Refuses ranks that cannot share, with the reason. */
export function checkSharing(config: Config): void {
  if (!isShared(config)) return;
  const { engine } = config;
  const { placement, migrate } = sharingOf(config);
  if (migrate === "scaled" && placement !== "predicted")
    throw new TreadleError(
      "config.invalid",
      `'migrate' is 'scaled' where 'placement' is '${placement}': it scales groups, which 'predicted' alone makes; set that, or migrate 'pays'`,
    );
  if (!config.emulated && engine?.kind === "torch")
    throw new TreadleError(
      "config.invalid",
      `'placement' is '${placement}' and 'migrate' '${migrate}', but an engine of kind '${engine.kind}' takes no episode that has begun elsewhere; set them to 'own' and 'never'`,
    );
}

/** Refuses ranks of several devices where the engine generates on one, and sizes that an emulated engine does not know. */
export function checkDegrees(config: Config): void {
  const { degrees, emulated, engine } = config;
  if (degrees === undefined) return;
  const wide = degrees.find((degree) => degree > 1);
  const kind = engine?.kind ?? "embedded";
  if (!emulated && wide !== undefined && (kind === "embedded" || kind === "torch"))
    throw new TreadleError(
      "config.invalid",
      `'degrees' has a rank of '${wide}' devices, but an engine of kind '${kind}' generates on one: allowed is 1 for each rank; list ones, or have an SGLang or vLLM server generate`,
    );
  for (const degree of degrees) tokenSecondsOf(config, degree);
}
