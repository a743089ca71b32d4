/** What becomes of completions when weights come while they run. */
import assert from "node:assert/strict";
import { type Completion, type Sampling, versionRunsOf, type Weights } from "@treadle/contracts";
import { type GenerationEngine, OnNewWeights } from "../engine.ts";
import { assertAlike, assertClose, assertRefused, tokensOf, versioned } from "./conformance.ts";
import { every, prompts, sampling, type TestedGeneration } from "./tested-generation.ts";

const keys = prompts.map((_, index) => 100 + index);
const appended = 3;
/** Asked about its first token a completion goes on, and then is complete. */
const answer = ({ tokens }: Completion): Int32Array | undefined =>
  tokens.length === 1 ? Int32Array.of(appended) : undefined;

/** The first that asks loads them, and all wait for it. */
function loadingOnce(engine: GenerationEngine, weights: Weights): () => Promise<void> {
  let loading: Promise<void> | undefined;
  return () => {
    if (loading) return loading;
    loading = engine.loadWeights(weights);
    loading.catch(() => {}); // whoever awaits it is told
    return loading;
  };
}

const versionsOf = ({ versions = [], tokens, policyVersion }: Completion): number[] =>
  versionRunsOf(versions, tokens.length, policyVersion).flatMap(([version, count]) => Array(count).fill(version));

export const newWeightsPromises: Readonly<Record<string, (tested: TestedGeneration) => Promise<void>>> = {
  "W3 weights that come while completions run leave none that two versions have made": async ({
    engine,
    weights: [own, other],
    drawsByRequest,
  }) => {
    const temperature = drawsByRequest ? 0 : 1;
    for (const seed of [9, 10, 11]) {
      const short: Sampling = { ...sampling, seed, temperature, stopTokens: [0, 1, 2] };
      const stops: Sampling = { ...short, stopTokens: every };
      const version = engine.policyVersion + 1;
      await engine.loadWeights(versioned(other, version));
      const after = await engine.generate(prompts, short, { keys });
      const extended = await engine.generate(prompts, stops, { keys, extend: async (_, turn) => answer(turn) });
      await engine.loadWeights(versioned(own, version + 1));
      const before = await engine.generate(prompts, short, { keys });

      const load = loadingOnce(engine, versioned(other, version + 2));
      const made = await engine.generate(prompts, short, { keys, onCompletion: () => void load() });
      await load();
      for (const [index, completion] of made.entries()) {
        const isOld = completion.policyVersion === version + 1;
        assert.ok(isOld || completion.policyVersion === version + 2);
        assertAlike([completion], [(isOld ? before : after)[index]!]);
      }

      await engine.loadWeights(versioned(own, version + 3));
      const loadAsked = loadingOnce(engine, versioned(other, version + 4));
      const asked = await engine.generate(prompts, stops, {
        keys,
        extend: async (_, turn) => {
          await loadAsked();
          return answer(turn);
        },
      });
      assertAlike(asked, extended);
      for (const { policyVersion } of asked) assert.equal(policyVersion, version + 4);
    }
    await engine.loadWeights(versioned(own, engine.policyVersion + 1));
  },

  "W1 keeps what it was asked about when weights come, where it is told so, and says which weights chose each token; or refuses that":
    async ({ engine, score, weights: [own, other] }) => {
      const stops: Sampling = { ...sampling, stopTokens: every };
      const one: Sampling = { ...sampling, maxTokens: 1 };
      for (const onNewWeights of OnNewWeights.options) {
        const alone = engine.generate(prompts, sampling, { keys, onNewWeights });
        if (!engine.heedsNewWeights) {
          await assertRefused(alone, "engine.invalid-request");
          continue;
        }
        for (const { tokens, versions, policyVersion } of await alone)
          assert.deepEqual(versions, [[policyVersion, tokens.length]]);
        const old = engine.policyVersion + 1;
        const newest = old + 1;
        await engine.loadWeights(versioned(other, newest));
        const after = await engine.generate(prompts, one, { keys });
        await engine.loadWeights(versioned(own, old));
        const before = await engine.generate(prompts, one, { keys });
        assert.notDeepEqual(tokensOf(before), tokensOf(after));

        const load = loadingOnce(engine, versioned(other, newest));
        const early = new Set<number>();
        const made = await engine.generate(prompts, stops, {
          ...{ keys, onNewWeights },
          extend: async (index, turn) => {
            if (engine.policyVersion === old) early.add(index);
            await load();
            return answer(turn);
          },
        });
        assert.ok(early.size > 0);
        for (const [index, completion] of made.entries()) {
          const { tokens, logprobs } = completion;
          const [first, ...later] = versionsOf(completion);
          assert.equal(first, early.has(index) ? old : newest);
          assertAlike(
            [{ ...completion, tokens: tokens.subarray(0, 1), logprobs: logprobs.subarray(0, 1) }],
            [(first === old ? before : after)[index]!],
          );
          assert.deepEqual([tokens[1], logprobs[1]], [appended, 0]);
          assert.deepEqual(later.slice(1), Array(tokens.length - 2).fill(newest));
          assert.equal(completion.policyVersion, newest);
          // With keys and values of older weights it is drawn from something in between.
          if (onNewWeights === "keep") continue;
          const prompt = prompts[index]!;
          const scored = await score(Int32Array.of(...prompt, ...tokens), sampling.temperature);
          assertClose(logprobs.subarray(2), scored.subarray(prompt.length + 2), 5e-5);
        }
        const [going] = await engine.generate([], sampling, {
          onNewWeights,
          join: (add) => {
            const begun = { tokens: Int32Array.of(1), logprobs: Float32Array.of(-1), numAppended: 0, turnFrom: 0 };
            add({ prompt: prompts[0]!, key: 1, begun: { ...begun, versions: [[old - 1, 1]] } });
          },
        });
        assert.deepEqual(going?.versions, [
          [old - 1, 1],
          [newest, going!.tokens.length - 1],
        ]);
        await engine.loadWeights(versioned(own, newest + 1));
      }
    },
};
