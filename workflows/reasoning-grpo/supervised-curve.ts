/**
 * The supervised curve of the demonstrations that the workflow imitates, far beyond where it stops imitating.
 *
 *     node --conditions=source --import tsx workflows/reasoning-grpo/supervised-curve.ts --seed 2 --updates 600
 */
import { createArithmeticTask, demonstrationOf, measureAccuracy } from "treadle/learning";
import { printSupervisedCurve } from "./supervised.ts";

await printSupervisedCurve(new URL("config.yaml", import.meta.url), { updates: 600, every: 50 }, (config) => {
  const task = createArithmeticTask({ ...config.task, seed: config.seed });
  const heldOut = task.heldOut(config.evaluation.problems);
  const { paddingToken, stopToken } = task.tokenizer;
  return {
    demonstrations: task
      .demonstrated(config.imitation.problems)
      .map((prompt) => demonstrationOf(prompt, task.tokenizer)),
    paddingToken,
    async accuracy(engine) {
      const completions = await engine.generate(
        heldOut.map(({ tokens }) => tokens),
        { maxTokens: task.maxAnswerTokens, temperature: 0, stopTokens: [stopToken], seed: 0 },
      );
      return measureAccuracy(heldOut, completions, task.tokenizer).accuracy;
    },
  };
});
