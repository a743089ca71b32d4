import { TreadleError } from "@treadle/contracts";
import type { ActorCriticConfig } from "@treadle/engines";
import { isReward, largestReward } from "@treadle/learning";
import type { Trajectory } from "../simulator/items.ts";

/**
 * Throws `learning.invalid-batch`, with the environment, the field and the step, unless a trajectory's arrays are of one
 * length, its numbers finite where they are used, its rewards and values within ± `largestReward`, its flags 0 or 1, and its version
 * one that there has been.
 */
export function checkTrajectory(
  trajectory: Trajectory,
  { observationSize, actionSize }: Pick<ActorCriticConfig, "observationSize" | "actionSize">,
  currentVersion: number,
): void {
  const { environment, policyVersion, rewards, terminated, truncated, lastValue } = trajectory;
  const who = `trajectory of environment '${environment}' has`;
  const steps = rewards.length;
  if (!(policyVersion >= 0 && policyVersion <= currentVersion)) {
    throw invalid(`${who} policy version '${policyVersion}': allowed is 0 to the current version ${currentVersion}`);
  }
  const widths = {
    observations: observationSize,
    actions: actionSize,
    logprobs: 1,
    values: 1,
    terminated: 1,
    truncated: 1,
    finalValues: 1,
  } as const;
  for (const [name, width] of Object.entries(widths) as [keyof typeof widths, number][]) {
    if (trajectory[name].length === steps * width) continue;
    throw invalid(
      `${who} '${trajectory[name].length}' ${name}: allowed is '${steps * width}', ${width} for each of its ${steps} steps`,
    );
  }
  rewards.forEach((reward, step) => {
    if (isReward(reward)) return;
    throw invalid(
      `${who} rewards '${reward}' at step '${step}': allowed is a finite number within ± ${largestReward}; check the environment`,
    );
  });
  for (const name of ["terminated", "truncated"] as const) {
    const step = trajectory[name].findIndex((flag) => flag !== 0 && flag !== 1);
    if (step >= 0) throw invalid(`${who} ${name} '${trajectory[name][step]}' at step '${step}': allowed is 0 or 1`);
  }
  const isTruncated = (step: number) => truncated[step] === 1 && terminated[step] !== 1;
  for (const name of ["observations", "actions", "logprobs", "values", "finalValues"] as const) {
    trajectory[name].forEach((value, at) => {
      const step = Math.floor(at / widths[name]);
      if (name === "finalValues" && !isTruncated(step)) return;
      if (name === "values" || name === "finalValues" ? isReward(value) : Number.isFinite(value)) return;
      const within = name === "values" || name === "finalValues" ? ` within ± ${largestReward}` : "";
      throw invalid(`${who} ${name} '${value}' at step '${step}': allowed is a finite number${within}`);
    });
  }
  const goesOn = steps > 0 && terminated[steps - 1] !== 1 && truncated[steps - 1] !== 1;
  if (goesOn && !isReward(lastValue)) {
    throw invalid(`${who} lastValue '${lastValue}': allowed is a finite number within ± ${largestReward}`);
  }
}

function invalid(message: string): TreadleError {
  return new TreadleError("learning.invalid-batch", message);
}
