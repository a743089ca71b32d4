/**
 * A policy learns to write a program that passes a test suite. The suite is the reward: an action of seconds, which runs its cases
 * on as many cores as it was granted. The policy is a table of shares, so that the suites are what a step takes.
 */
import { setTimeout as delay } from "node:timers/promises";
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
import { ToolConfig, type ToolReport, ToolSession, ToolWorker } from "treadle/workers";
import { z } from "zod";

const Config = z.strictObject({
  words: z
    .array(z.array(z.string().min(1)).min(2))
    .min(1)
    .describe("a program has one of each list"),
  thinkSeconds: z.number().nonnegative().describe("before each attempt, in place of a model that generates"),
  attempts: z.int().positive(),
  learningRate: z.number().positive(),
  tool: ToolConfig,
});

/** of `program` in config.yaml */
const numCases = 16;

export const Task = z.object({ id: z.string() });
/** `choices`: of each list of words, the one that was written */
export const Attempt = z.object({ choices: z.array(z.int()), reward: z.number() });
type Attempt = z.infer<typeof Attempt>;

const softmax = (scores: readonly number[]): number[] => {
  const powers = scores.map((score) => Math.exp(score - Math.max(...scores)));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
};

const draw = (shares: readonly number[], at: number): number => {
  let sum = 0;
  const chosen = shares.findIndex((share) => {
    sum += share;
    return at < sum;
  });
  return chosen < 0 ? shares.length - 1 : chosen;
};

type RolloutConfig = Pick<z.infer<typeof Config>, "words" | "thinkSeconds" | "attempts">;
type RolloutReport = Omit<ToolReport, "toolCalls" | "toolFailures"> & { readonly suites: number };

export class RolloutWorker extends Worker<RolloutConfig> {
  static override readonly replays = ["pullPolicy"]; // a restarted process gets the policy again
  #policy: readonly (readonly number[])[] = [];

  async pullPolicy(actor: WorkerGroup<ActorWorker>): Promise<void> {
    this.#policy = (await actor.onRanks(0).scores().first()).map(softmax);
  }

  /** Every episode of a batch at once: they wait for one another only where cores are short. */
  async play(
    tasks: Source<z.infer<typeof Task>>,
    attempts: Sink<Attempt>,
    suite: WorkerGroup<ToolWorker>,
  ): Promise<RolloutReport> {
    const session = await ToolSession.open(suite, `${this.component}/${this.rank}`);
    for await (const batch of tasks.batches()) {
      const played = await Promise.all(batch.map(({ id }) => this.#episode(id, session)));
      await attempts.put(...played.flat());
    }
    const { toolCalls: suites, toolFailures: _, ...times } = await session.close();
    return { suites, ...times };
  }

  async #episode(trajectory: string, session: ToolSession): Promise<Attempt[]> {
    const { words, thinkSeconds, attempts } = this.config;
    const random = createRandom(`${this.seed}/${trajectory}`);
    const made: Attempt[] = [];
    for (let numAnswered = 0; numAnswered < attempts && made.at(-1)?.reward !== 1; numAnswered++) {
      await delay(thinkSeconds * 1000);
      const choices = this.#policy.map((shares) => draw(shares, random.float()));
      const text = choices.map((choice, list) => words[list]![choice]).join("");
      const { exitCode, output } = await session.call({ trajectory, text, numAnswered });
      made.push({ choices, reward: exitCode === 0 ? Number(output) / numCases : 0 });
    }
    session.end(trajectory);
    return made;
  }
}

export class ActorWorker extends Worker<{ lists: readonly number[]; learningRate: number }> {
  static override readonly saves = ["learn"]; // its state outlives its process
  #scores: number[][] = this.config.lists.map((words) => new Array<number>(words).fill(0));

  async scores(): Promise<readonly (readonly number[])[]> {
    return this.#scores;
  }

  /** REINFORCE, with the mean as baseline. `surest`: the share of the program that is written most. */
  async learn(attempts: Source<Attempt>): Promise<{ reward: number; surest: number }> {
    const all: Attempt[] = [];
    for await (const batch of attempts.batches({ acknowledge: "call" })) all.push(...batch);
    const policy = this.#scores.map(softmax);
    const mean = all.reduce((sum, { reward }) => sum + reward, 0) / Math.max(1, all.length);
    for (const { choices, reward } of all) {
      const step = (this.config.learningRate * (reward - mean)) / all.length;
      for (const [list, choice] of choices.entries())
        this.#scores[list] = this.#scores[list]!.map(
          (score, word) => score + step * ((word === choice ? 1 : 0) - policy[list]![word]!),
        );
    }
    const surest = this.#scores.reduce((share, scores) => share * Math.max(...softmax(scores)), 1);
    return { reward: mean, surest };
  }

  override async checkpoint(state: StateWriter): Promise<void> {
    state.write("scores", JSON.stringify(this.#scores));
  }
  override async restore(state: StateReader): Promise<void> {
    this.#scores = JSON.parse(await state.text("scores"));
  }
}

export default workflow(Config, async ({ cluster, config, steps, report }) => {
  const { words, thinkSeconds, attempts: mostAttempts, learningRate } = config;
  const lists = words.map(({ length }) => length);
  const rollout = cluster.launch(RolloutWorker, { words, thinkSeconds, attempts: mostAttempts });
  const suite = cluster.launch(ToolWorker, config.tool, { name: "suite", ranks: { fixed: 1 }, devices: "none" });
  const actor = cluster.launch(ActorWorker, { lists, learningRate }, { ranks: { fixed: 1 } });
  const tasks = cluster.channel("tasks", Task);
  const attempts = cluster.channel("attempts", Attempt);

  const tasksOf = (step: number) => Array.from({ length: config.batch }, (_, i) => ({ id: `${step}.${i}` }));
  for await (const { batch } of steps(tasksOf)) {
    rollout.pullPolicy(actor);
    await tasks.put(...batch);
    report(rollout.play(tasks.source, attempts.sink, suite));
    report(actor.learn(attempts.source));
  }
});
