/**
 * The simulator's side of its cycle with a policy: one observation of each stage out, one answer back, over two channels.
 * Stages wait for their own answers alone, so while the policy computes for one, the simulator steps another.
 *
 * Each may die at any instant, and channels then deliver again what the dead one held. So that what belongs to a lost
 * past mixes with nothing:
 * SE1 every attempt has a name that no other has; answers to other observations than the last are let go.
 * SE2 `done` is what a policy puts with the trajectories of an attempt, in one turn of the channels: it arrives when they
 *    are delivered, and not otherwise.
 * SE3 an attempt is of all stages of a simulator: they begin together, and they are delivered together. Stages delivered
 *    one by one would need a memory of those that are, which dies with the policy.
 *
 * And so that neither waits for the other for ever, where stages outnumber `flow.capacity`:
 * SE4 a simulator waits for answers alone. What it shows waits for room beside that: a policy whose answers have no room
 *    waits until the simulator takes some.
 */
import { TreadleError } from "@treadle/contracts";
import { isReward, largestReward } from "@treadle/learning";
import type { Sink, Source } from "@treadle/runtime";
import { FirstFailure } from "../rollout/first-failure.ts";
import type { Transition } from "./environment.ts";
import type { Action, Observation } from "./items.ts";

/** What a stage shows first in an attempt. */
export type ShownStage = {
  readonly firstEnvironment: number;
  readonly numEnvironments: number;
  readonly observations: Float32Array;
};

export type ExchangeOptions = {
  readonly actions: Source<Action>;
  readonly observations: Sink<Observation>;
  readonly simulator: number;
  readonly policy: number;
  readonly horizon: number;
  readonly stages: readonly ShownStage[];
};

/** One attempt after the other at `horizon` steps. */
export class Exchange {
  readonly #options: ExchangeOptions;
  /** by stage */
  readonly #times: number[];
  readonly #isAsking: boolean[];
  #attempt = crypto.randomUUID();
  /** of what could not be shown */
  readonly #unshown = new FirstFailure();

  constructor(options: ExchangeOptions) {
    this.#options = options;
    this.#times = options.stages.map(() => 0);
    this.#isAsking = options.stages.map(() => false);
  }

  /** Shows what all stages show now as the first of a new attempt (SE3). */
  begin(): void {
    this.#attempt = crypto.randomUUID();
    this.#times.fill(0);
    for (const [stage, { observations, numEnvironments }] of this.#options.stages.entries()) {
      this.#show(stage, {
        observations,
        finalObservations: observations,
        rewards: new Float32Array(numEnvironments),
        terminated: new Uint8Array(numEnvironments),
        truncated: new Uint8Array(numEnvironments),
      });
    }
  }

  /** Shows what the last action of a stage has led to. */
  goOn(stage: number, transition: Transition): void {
    this.#times[stage]! += 1;
    this.#show(stage, transition);
  }

  /** The next answer to what a stage has shown last, or undefined when nobody answers any more. Rejects where it could not be shown. */
  async answer(): Promise<Action | undefined> {
    const { actions, simulator } = this.#options;
    for (;;) {
      const taken = await Promise.race([this.#unshown.happened, actions.take({ items: 1, key: `${simulator}` })]);
      const [action] = taken ?? [];
      if (!action) return undefined;
      const { stage, attempt, time } = action;
      if (attempt !== this.#attempt || time !== this.#times[stage] || !this.#isAsking[stage]) continue; // SE1
      this.#isAsking[stage] = false;
      return action;
    }
  }

  /** SE4: nobody awaits it. */
  #show(stage: number, transition: Transition): void {
    const { observations, simulator, policy, horizon, stages } = this.#options;
    const { firstEnvironment } = stages[stage] as ShownStage;
    this.#isAsking[stage] = true;
    const put = observations.put({
      ...transition,
      ...{ simulator, policy, horizon, firstEnvironment, stage, stages: stages.length },
      ...{ attempt: this.#attempt, time: this.#times[stage] ?? 0 },
    });
    put.catch(this.#unshown.fail);
  }
}

/** Refuses a policy that acts in another space, or answers with what is no number. */
export function requireActions(action: Action, numEnvironments: number, actionSize: number): void {
  if (action.actions.length !== numEnvironments * actionSize) {
    throw new TreadleError(
      "config.invalid",
      `a policy answers with '${action.actions.length / numEnvironments}' numbers an action; the environment takes ${actionSize}: set 'actor.model.actionSize'`,
    );
  }
  const at = action.actions.findIndex((value) => !Number.isFinite(value));
  if (at < 0) return;
  throw new TreadleError(
    "learning.invalid-batch",
    `a policy of version '${action.policyVersion}' answers simulator '${action.simulator}' with '${action.actions[at]}' ` +
      "in an action: allowed is a finite number; its weights have diverged, so lower the learning rate",
  );
}

/** Refuses what an environment shows and is no number, or no reward, before a policy acts on it. */
export function requireObservation(seen: Observation): void {
  const { simulator, firstEnvironment, time, rewards, truncated } = seen;
  const numEnvironments = rewards.length;
  const refuse = (name: string, value: number, row: number, allowed: string) => {
    throw new TreadleError(
      "learning.invalid-batch",
      `simulator '${simulator}' shows ${name} '${value}' of environment '${firstEnvironment + row}' at time '${time}': ` +
        `allowed is a finite number${allowed}; check the environment`,
    );
  };
  for (const name of ["observations", "finalObservations"] as const) {
    const width = seen[name].length / numEnvironments;
    seen[name].forEach((value, at) => {
      const row = Math.floor(at / width);
      const isUsed = name === "observations" || truncated[row] === 1;
      if (isUsed && !Number.isFinite(value)) refuse(name, value, row, "");
    });
  }
  rewards.forEach((reward, row) => {
    if (!isReward(reward)) refuse("a reward of", reward, row, ` within ± ${largestReward}`);
  });
}
