/**
 * The supervised curve of the demonstrations that the workflow imitates, far beyond where it stops imitating. The
 * calculator is a function here, not a tool in a sandbox: it answers one call of an episode, a product of two numbers, and
 * nothing else, where the workflow's shell answers two, of any arithmetic, and says when it failed.
 *
 *     node --conditions=source --import tsx workflows/tool-agent/supervised-curve.ts --seed 1 --updates 300
 */
import { arithmeticAlphabet, createArithmeticTask, createCharacterTokenizer } from "treadle/learning";
import { CallSyntax } from "treadle/workers";
import { z } from "zod";
import { printSupervisedCurve } from "../reasoning-grpo/supervised.ts";
import { demonstrateCalls } from "./demonstration.ts";

await printSupervisedCurve(new URL("config.yaml", import.meta.url), { updates: 300, every: 25 }, (config) => {
  const { call, maxTokens } = z.looseObject({ call: CallSyntax, maxTokens: z.int() }).parse(config);
  const task = createArithmeticTask({ ...config.task, seed: config.seed });
  const tokenizer = createCharacterTokenizer(arithmeticAlphabet + call.open + call.close + call.end + call.failure);
  const [close] = tokenizer.encode(call.close);
  const heldOut = task.heldOut(config.evaluation.problems);
  const demonstrations = task.demonstrated(config.imitation.problems);
  return {
    demonstrations: demonstrations.map((prompt) => demonstrateCalls(prompt, call, tokenizer)),
    paddingToken: tokenizer.paddingToken,
    async accuracy(engine) {
      const completions = await engine.generate(
        heldOut.map(({ tokens }) => tokens),
        { maxTokens, temperature: 0, stopTokens: [tokenizer.stopToken, close as number], seed: 0 },
        {
          extend: async (_, { tokens }) => {
            const text = tokens.at(-1) === close ? tokenizer.decode(tokens.subarray(0, -1)) : "";
            const product = /<(\d+)\*(\d+)$/.exec(text);
            if (!product || text.includes(call.end)) return undefined;
            return tokenizer.encode(
              `${Number(product[1]) * Number(product[2])}${call.end}`.slice(-call.maxAnswerTokens),
            );
          },
        },
      );
      const isRight = completions.filter(({ tokens, finishReason }, index) => {
        const text = tokenizer.decode(tokens);
        return finishReason === "stop" && text.slice(text.lastIndexOf(call.end) + 1) === heldOut[index]?.answer;
      });
      return isRight.length / heldOut.length;
    },
  };
});
