/**
 * The simulator's side of its cycle with a policy: one observation out, one answer back, over two channels.
 *
 * Each may die at any instant, and channels then deliver again what the dead one held. So that what belongs to a lost
 * past mixes with nothing:
 * SE1 every attempt has a name that no other has; answers to other observations than the last are let go.
 * SE2 `done` is what a policy puts with the trajectories of an attempt, in one turn of the channels: it arrives when they
 *    are delivered, and not otherwise.
 */
import { TreadleError } from "@treadle/contracts";
import { isReward, largestReward } from "@treadle/learning";
import type { Sink, Source } from "@treadle/runtime";
import type { Transition } from "./environment.ts";
import type { Action, Observation } from "./items.ts";

export type ExchangeOptions = {
  readonly actions: Source<Action>;
  readonly observations: Sink<Observation>;
  readonly simulator: number;
  readonly policy: number;
  readonly firstEnvironment: number;
  readonly horizon: number;
};

/** One attempt after the other at `horizon` steps. */
export class Exchange {
  readonly #options: ExchangeOptions;
  #attempt = crypto.randomUUID();
  #time = 0;

  constructor(options: ExchangeOptions) {
    this.#options = options;
  }

  get time(): number {
    return this.#time;
  }

  /** Shows `observations` as the first of a new attempt. */
  begin(observations: Float32Array, numEnvironments: number): Promise<Action | undefined> {
    this.#attempt = crypto.randomUUID();
    this.#time = 0;
    return this.#ask({
      observations,
      finalObservations: observations,
      rewards: new Float32Array(numEnvironments),
      terminated: new Uint8Array(numEnvironments),
      truncated: new Uint8Array(numEnvironments),
    });
  }

  /** Shows what the last action has led to. */
  goOn(transition: Transition): Promise<Action | undefined> {
    this.#time += 1;
    return this.#ask(transition);
  }

  /** The answer, or undefined when nobody answers any more. */
  async #ask(transition: Transition): Promise<Action | undefined> {
    const { actions, observations, ...rest } = this.#options;
    await observations.put({ ...transition, ...rest, attempt: this.#attempt, time: this.#time });
    for (;;) {
      const [action] = (await actions.take({ items: 1, key: `${rest.simulator}` })) ?? [];
      if (!action) return undefined;
      if (action.attempt === this.#attempt && action.time === this.#time) return action; // SE1
    }
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
