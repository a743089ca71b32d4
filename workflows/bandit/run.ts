/** A whole workflow with workers of its own: a policy learns by REINFORCE which arm of a slot machine pays best. */

import {
  type Sink,
  type Source,
  type StateReader,
  type StateWriter,
  Worker,
  type WorkerGroup,
  workflow,
} from "treadle";
import { createRandom } from "treadle/learning";
import { z } from "zod";

const Config = z.strictObject({ payouts: z.array(z.number()).min(2), learningRate: z.number().positive() });

export const Pull = z.object({ id: z.string() });
export const Outcome = z.object({ arm: z.int(), reward: z.number() });

const softmax = (scores: readonly number[]): number[] => {
  const powers = scores.map((score) => Math.exp(score - Math.max(...scores)));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
};

/** The arm at which the running sum of shares passes `at`, from 0 to 1. */
const draw = (shares: readonly number[], at: number): number => {
  let sum = 0;
  const arm = shares.findIndex((share) => {
    sum += share;
    return at < sum;
  });
  return arm < 0 ? shares.length - 1 : arm;
};

export class RolloutWorker extends Worker<{ payouts: readonly number[] }> {
  static override readonly replays = ["pullPolicy"]; // a restarted process gets the policy again
  #policy: readonly number[] = [];

  async pullPolicy(actor: WorkerGroup<ActorWorker>): Promise<void> {
    this.#policy = softmax(await actor.onRanks(0).scores().first());
  }

  async play(pulls: Source<z.infer<typeof Pull>>, outcomes: Sink<z.infer<typeof Outcome>>): Promise<void> {
    await using _ = await this.devices.lock();
    for await (const batch of pulls.batches()) {
      const played = batch.map(({ id }) => {
        const random = createRandom(`${this.seed}/${id}`);
        const chosen = draw(this.#policy, random.float());
        return { arm: chosen, reward: (this.config.payouts[chosen] ?? 0) + random.float() - 0.5 };
      });
      await outcomes.put(...played);
    }
  }
}

export class ActorWorker extends Worker<{ arms: number; learningRate: number }> {
  static override readonly saves = ["learn"]; // its state outlives its process
  #scores: number[] = new Array(this.config.arms).fill(0);

  async scores(): Promise<readonly number[]> {
    return this.#scores;
  }

  async learn(outcomes: Source<z.infer<typeof Outcome>>): Promise<{ reward: number; bestArm: number }> {
    await using _ = await this.devices.lock();
    const all: z.infer<typeof Outcome>[] = [];
    for await (const batch of outcomes.batches({ acknowledge: "call" })) all.push(...batch);
    const policy = softmax(this.#scores);
    const mean = all.reduce((sum, { reward }) => sum + reward, 0) / Math.max(1, all.length);
    for (const { arm, reward } of all) {
      const step = (this.config.learningRate * (reward - mean)) / all.length;
      this.#scores = this.#scores.map(
        (score, other) => score + step * ((other === arm ? 1 : 0) - (policy[other] ?? 0)),
      );
    }
    return { reward: mean, bestArm: Math.max(...softmax(this.#scores)) };
  }

  override async checkpoint(state: StateWriter): Promise<void> {
    state.write("scores", JSON.stringify(this.#scores));
  }
  override async restore(state: StateReader): Promise<void> {
    this.#scores = JSON.parse(await state.text("scores"));
  }
}

export default workflow(Config, async ({ cluster, config, steps, report }) => {
  const { payouts, learningRate } = config;
  const rollout = cluster.launch(RolloutWorker, { payouts });
  const actor = cluster.launch(ActorWorker, { arms: payouts.length, learningRate }, { ranks: { fixed: 1 } });
  const pulls = cluster.channel("pulls", Pull);
  const outcomes = cluster.channel("outcomes", Outcome);

  const pullsOf = (step: number) => Array.from({ length: config.batch }, (_, i) => ({ id: `${step}.${i}` }));
  for await (const { batch } of steps(pullsOf)) {
    rollout.pullPolicy(actor);
    await pulls.put(...batch);
    rollout.play(pulls.source, outcomes.sink); // a handle, not awaited: the pipeline overlaps
    report(actor.learn(outcomes.source));
  }
});
