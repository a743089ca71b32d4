/** The actor's step of every algorithm and an independent float64 reference are the same function, and have the same slopes. */
import { readFileSync } from "node:fs";
import type { Episode, EpisodeGroup } from "@treadle/contracts";
import { ScriptedEngine } from "@treadle/engines/testing";
import { createRandom, type Random, referenceStep, type WeightRule } from "@treadle/learning";
import {
  configurations,
  entropyOf,
  type RandomStep,
  randomStep,
  randomStepColumns,
  randomStepVersion,
  randomStepVocabulary,
} from "@treadle/learning/testing";
import type { Source } from "@treadle/runtime";
import { expect, test } from "vitest";
import { ActorConfig, ActorWorker } from "../src/index.ts";
import { contextOf } from "./support/context.ts";

const seed = Number(process.env.TREADLE_SEED);
const stepsEach = 60;
/** of seed 1 */
const table = readFileSync(new URL("../../learning/README.md", import.meta.url), "utf8");
const cases = configurations.map((config) => [JSON.stringify(config), config] as const);

/** The actor that ships, with a policy that is given. */
class ScriptedActor extends ActorWorker {
  readonly script: ScriptedEngine;

  constructor(config: object, step: RandomStep) {
    const model = {
      vocabSize: randomStepVocabulary,
      layers: 1,
      width: 4,
      heads: 1,
      contextLength: randomStepColumns,
      microBatchTokens: 20,
    };
    super(contextOf(ActorConfig.parse({ model, learningRate: 0.1, maxStaleness: 1, ...config }), "actor"));
    const byFirstToken = new Map([...step.now].map(([episode, scores]) => [episode.tokens[0] as number, scores]));
    this.script = new ScriptedEngine(randomStepVocabulary, (firstToken) => byFirstToken.get(firstToken)!);
  }

  override async setup(): Promise<void> {
    this.engine = this.script;
    await this.publish();
    for (let version = 0; version < randomStepVersion; version++) await this.script.optimStep({ learningRate: 0 });
  }
}

/** All that are offered, at three caps. */
const corrections: WeightRule[] = [0.5, 2, 1e3].flatMap((cap) => [
  { level: "action", mode: "truncate", cap },
  ...(["token", "sequence"] as const).flatMap((level) =>
    (["truncate", "mask"] as const).map((mode) => ({ level, mode, cap })),
  ),
  { level: "action", mode: "mask", cap },
]);

/** What the actor minimises when the groups come in chunks, and the slopes that it takes. */
async function shippedStep(config: object, rolloutCorrection: WeightRule, step: RandomStep, random: Random) {
  const actor = new ScriptedActor({ algorithm: config, rolloutCorrection }, step);
  await actor.setup();
  const cut = random.integer(step.groups.length + 1);
  const chunks = [step.groups.slice(0, cut), step.groups.slice(cut)];
  const source = {
    async *batches() {
      yield* chunks;
    },
  } as unknown as Source<EpisodeGroup>;
  await actor.train(source);
  const scale = actor.script.steps.at(-1)?.scale ?? Number.NaN;
  const slopesOf = (episode: Episode) => {
    const own = actor.script.slopes.get(episode.tokens[0] as number);
    return own && { logprobs: own.logprobs.map((one) => one * scale), values: own.values.map((one) => one * scale) };
  };
  return { loss: actor.script.loss * scale, slopesOf };
}

/**
 * The proximal policy of what older weights have sampled, or another engine and nobody has rescored, is the one that the
 * step begins with: what the engine says now.
 */
function asTrained({ groups, now }: RandomStep): RandomStep {
  const trained = new Map(
    [...now].map(([episode, scores]) => {
      const isStale = episode.policyVersions.some((version) => version < randomStepVersion);
      const isOfOtherEngine = episode.engine === "another" && !episode.oldLogprobs;
      return [
        isStale || isOfOtherEngine ? { ...episode, oldLogprobs: Float32Array.from(scores.logprobs) } : episode,
        scores,
      ] as const;
    }),
  );
  const episodes = [...trained.keys()];
  let next = 0;
  const regrouped = groups.map((group) => ({ ...group, episodes: group.episodes.map(() => episodes[next++]!) }));
  return { groups: regrouped, now: trained };
}

test.each(cases)("the loss of %s is the reference's", async (_, config) => {
  const random = createRandom(`${seed}/${JSON.stringify(config)}`);
  let largest = 0;
  let numTaken = 0;
  for (let each = 0; each < stepsEach; each++) {
    const step = randomStep(random, { extreme: each % 2 === 1 });
    const correction = corrections[random.integer(corrections.length)] as WeightRule;
    const { loss } = await shippedStep(config, correction, step, random);
    const { groups, now } = asTrained(step);
    const expected = referenceStep(config, groups, (episode) => now.get(episode)!, { correction });
    const error = Math.abs(loss - expected.loss) / Math.max(1, expected.magnitude);
    expect(error, `TREADLE_SEED=${seed}, step ${each}: ${loss} and ${expected.loss}`).toBeLessThan(1e-6);
    largest = Math.max(largest, error);
    if (expected.magnitude > 0) numTaken += 1;
  }
  expect(numTaken).toBeGreaterThan(stepsEach / 3);
  const row = `| \`${JSON.stringify(config)}\` | ${largest.toExponential(1)} |`;
  if (process.env.TREADLE_TABLE) console.log(row);
  else if (seed === 1) expect(table, "print it again, with TREADLE_TABLE=1").toContain(row);
});

test.each(cases)("the gradient of %s is what finite differences of the reference say", async (_, config) => {
  const random = createRandom(`${seed}/slopes/${JSON.stringify(config)}`);
  let compared = 0;
  for (let each = 0; each < 12; each++) {
    const step = randomStep(random, { extreme: false });
    const correction = corrections[random.integer(corrections.length)] as WeightRule;
    const { slopesOf } = await shippedStep(config, correction, step, random);
    const { groups, now } = asTrained(step);
    for (const episode of groups.flatMap(({ episodes }) => episodes)) {
      const own = slopesOf(episode);
      const tokens = [...episode.mask.keys()].filter((token) => episode.mask[token] === 1);
      if (!own || tokens.length === 0) continue;
      const token = tokens[random.integer(tokens.length)]!;
      for (const name of ["logprobs", "values"] as const) {
        const lossAt = (change: number) => {
          const changed = (of: Episode) => {
            const scores = now.get(of)!;
            if (of !== episode) return scores;
            const moved = { ...scores, [name]: scores[name].with(token, scores[name][token]! + change) };
            return { ...moved, entropies: moved.logprobs.map((own, at) => entropyOf(own, moved.others[at]!)) };
          };
          return referenceStep(config, groups, changed, { held: (of) => now.get(of)!, correction }).loss;
        };
        const width = 1e-4;
        const [below, here, above] = [lossAt(-width), lossAt(0), lossAt(width)];
        const slope = (above - below) / (2 * width);
        // Where a clip begins within the difference, there is no slope to compare with: it bends at the token itself,
        // or the slope over half the width is another.
        if (Math.abs(above - 2 * here + below) > 1e-6) continue;
        if (Math.abs((lossAt(width / 2) - lossAt(-width / 2)) / width - slope) > 1e-6) continue;
        const where = `TREADLE_SEED=${seed}, step ${each}, ${name} of token ${token}`;
        expect(Math.abs(own[name][token]! - slope), where).toBeLessThan(1e-5 * Math.max(1, Math.abs(slope)));
        compared += 1;
      }
    }
  }
  expect(compared).toBeGreaterThan(10);
});
