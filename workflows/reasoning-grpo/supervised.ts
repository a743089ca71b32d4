/** Supervised training alone, in one process: what a workflow's demonstrations are worth without rewards. */
import { readFile } from "node:fs/promises";
import { TransformerConfig, TransformerEngine } from "treadle/engines";
import { createRandom, packSupervised } from "treadle/learning";
import { type Demonstration, drawDemonstrations, ImitationConfig } from "treadle/workers";
import { parse } from "yaml";
import { z } from "zod";
import { readOptions } from "./read-options.ts";

const count = z.coerce.number().int().positive();
const Config = z.looseObject({
  seed: z.int(),
  model: TransformerConfig,
  imitation: ImitationConfig,
  maxGradNorm: z.number(),
  weightDecay: z.number().default(0),
  beta2: z.number().default(0.99),
  evaluation: z.looseObject({ problems: z.int() }),
  task: z.looseObject({}),
});
export type SupervisedConfig = z.infer<typeof Config>;

/** What a workflow demonstrates, and how an engine does on what is held out. */
export type Lesson = {
  readonly demonstrations: readonly Demonstration[];
  readonly paddingToken: number;
  accuracy(engine: TransformerEngine): Promise<number>;
};

/** Prints held-out accuracy every so many updates, by the workflow's own configuration; `--problems` demonstrates more or fewer. */
export async function printSupervisedCurve(
  configFile: URL,
  defaults: { readonly updates: number; readonly every: number },
  lessonOf: (config: SupervisedConfig) => Lesson,
): Promise<void> {
  const config = Config.parse(parse(await readFile(configFile, "utf8")));
  const Options = z.strictObject({
    seed: z.coerce.number().int().nonnegative().default(config.seed),
    updates: count.default(defaults.updates),
    every: count.default(defaults.every),
    problems: count.default(config.imitation.problems),
  });
  const { seed, updates, every, problems } = readOptions(Options);
  const model = { ...config.model, seed };
  const imitation = { ...config.imitation, problems };
  const seeded = { ...config, seed, model, imitation };
  const lesson = lessonOf(seeded);
  const { maxGradNorm, weightDecay, beta2 } = seeded;
  const { learningRate } = imitation;
  const engine = await TransformerEngine.create(model);
  const random = createRandom(seed).split("demonstrations");
  const options = { ...model, paddingToken: lesson.paddingToken };
  console.log("| updates | held-out accuracy |\n| --- | --- |");
  for (let done = 0; done < updates; done++) {
    const rows = drawDemonstrations(lesson.demonstrations, { ...imitation, updates: 1 }, random.split(done));
    let divisor = 0;
    for (const packed of packSupervised(rows, options)) {
      await engine.forwardBackward(packed.batch, { type: "cross-entropy" });
      divisor += packed.divisor;
    }
    await engine.optimStep({ learningRate, scale: 1 / divisor, maxGradNorm, weightDecay, beta2 });
    if ((done + 1) % every > 0) continue;
    console.log(`| ${done + 1} | ${(100 * (await lesson.accuracy(engine))).toFixed(1)} % |`);
  }
  await engine.close();
}
