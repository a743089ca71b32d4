/** Ranks of a rollout that differ in their devices: as listed, or as decided between steps. */
import { TreadleError } from "@treadle/contracts";
import type { RankSizer } from "@treadle/runtime";
import { type DegreesDecision, DegreesState, joinParts, PlayedStep, type Scheduler } from "@treadle/trajectories";
import { type EngineConfig, tokenSecondsOf } from "../engine.ts";
import type { RolloutOrderConfig } from "./order-config.ts";
import { sharingOf } from "./rank-sharing.ts";

type Config = EngineConfig & RolloutOrderConfig;

/** Of each rank, the seconds that a token takes alone as far as the configuration says; undefined where ranks are equal. */
export function tokenTimesOf(config: Config, rankDevices: readonly number[]): (number | undefined)[] | undefined {
  if (config.degrees === undefined) return undefined;
  return rankDevices.map((devices) => tokenSecondsOf(config, devices) || undefined);
}

/** Refuses ranks of several devices where the engine generates on one, sizes that an emulated engine does not know, and `auto` where nothing can be decided. */
export function checkDegrees(config: Config): void {
  const { degrees, emulated, engine } = config;
  if (degrees === undefined) return;
  const kind = engine?.kind ?? "embedded";
  if (degrees === "auto") {
    const problem = problemOfAuto(config);
    if (problem !== undefined) throw new TreadleError("config.invalid", `'degrees' is 'auto', but ${problem}`);
    return;
  }
  const wide = degrees.find((degree) => degree > 1);
  if (!emulated && wide !== undefined && (kind === "embedded" || kind === "torch"))
    throw new TreadleError(
      "config.invalid",
      `'degrees' has a rank of '${wide}' devices, but an engine of kind '${kind}' generates on one: allowed is 1 for each rank; list ones, or have an SGLang or vLLM server generate`,
    );
  for (const degree of degrees) tokenSecondsOf(config, degree);
}

function problemOfAuto(config: Config): string | undefined {
  const { emulated, engine } = config;
  const kind = engine?.kind ?? "embedded";
  if (!emulated)
    return kind === "embedded" || kind === "torch"
      ? `an engine of kind '${kind}' generates on one device a rank, so there is nothing to choose; leave it out`
      : `a server of kind '${kind}' has as many devices as it was started with; list those of each rank`;
  if (emulated.tokenTime === undefined)
    return "'emulated.tokenTime' does not say what a token takes on so many devices; give it, or list the devices of each rank";
  const { placement } = sharingOf(config);
  if (placement !== "predicted")
    return `'placement' is '${placement}': what ranks are worth is simulated with placement by prediction; set it to 'predicted', or list the devices of each rank`;
  return undefined;
}

/** What decides the devices of each rank, with `degrees: auto`, which \`checkDegrees\` has let pass. */
export function degreesSizer(config: Config, scheduler: Scheduler): RankSizer {
  const { emulated } = config;
  const tokenTime = emulated?.tokenTime ?? {};
  const { migrate, F } = sharingOf(config);
  const state = new DegreesState({
    ...{ tokenTime, scheduler, migrate, F },
    places: emulated?.slots ?? 1,
    prefillSteps: emulated?.prefillSteps ?? 0,
  });
  return {
    devicesPerRank: Math.min(...Object.keys(tokenTime).map(Number)),
    report: PlayedStep,
    stepEnded: (reports) => state.stepEnded(joinParts(reports as PlayedStep[])),
    *look(sizing) {
      const decision = yield* state.look(sizing);
      if (decision === undefined) return undefined;
      const { changes, best } = decision;
      return { degrees: changes ? best.degrees : undefined, why: explained(decision, sizing.changeSeconds) };
    },
  };
}

/** For people, who may want other ranks. */
function explained(decision: DegreesDecision, changeSeconds: number): string {
  const { reason, current, best, bestEqual, numSteps, horizonSteps } = decision;
  const figure = ({ degrees, seconds }: DegreesDecision["best"]) =>
    `${seconds.toPrecision(3)} s on [${degrees.join(", ")}]`;
  const equal = bestEqual && bestEqual.degrees !== best.degrees ? `, ${figure(bestEqual)} as the best equal ranks` : "";
  const simulated = `the last ${numSteps} steps, simulated as they were predicted, take ${figure(current)} on average`;
  const gained = (1 - best.seconds / current.seconds) * 100;
  const others = `${simulated}, and ${figure(best)}${equal}`;
  const change = `a change costs ${changeSeconds.toFixed(1)} s`;
  switch (reason) {
    case "is-best":
      return `rollout.degrees stays: ${simulated}, and no other proposal is faster`;
    case "gains-too-little":
      return `rollout.degrees stays: ${others}, which is too little, or not so in each of them (${gained.toFixed(1)} %)`;
    case "costs-more":
      return `rollout.degrees stays: ${others}; ${change}, more than ${horizonSteps} steps gain`;
    case "gains":
      return `rollout.degrees changes: ${others}; ${change}, less than ${horizonSteps} steps gain`;
  }
}
