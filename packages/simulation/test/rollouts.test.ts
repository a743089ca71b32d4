import {
  degreesThatFit,
  drawEpisodes,
  EpisodePredictor,
  learnSteps,
  type RecordedEpisode,
  workloadNames,
  workloadShapes,
} from "@treadle/trajectories";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  compareParts,
  compareRollouts,
  leftOut,
  RolloutScenario,
  reportPredictors,
  rolloutScenarios,
  type WorkloadPredictor,
} from "../src/index.ts";
import { boundsOf } from "../src/rollout/bounds.ts";
import { learnedForecasting, noisyForecasting } from "../src/rollout/forecasts.ts";
import { tailBatching } from "../src/rollout/tail-batching.ts";
import { chooseWay, drawSteps, simulateWay, type Way, waysOf } from "../src/rollout/ways.ts";

const seed = Number(process.env.TREADLE_SEED);
const small = RolloutScenario.parse({
  seed,
  workloads: ["coding"],
  gpus: 8,
  episodes: [96],
  samples: 8,
  F: [{ type: "affine", slope: 0.04 }],
  predictions: ["oracle", "learned"],
  learnSteps: 2,
});
const ways = ({ whole, ...rest }: Readonly<Record<string, unknown>> & { readonly whole: readonly unknown[] }) => [
  rest.verl,
  rest.hybrid,
  rest.leastLoad,
  rest.bestSimple,
  rest.priorityAlone,
  rest.placementAlone,
  rest.chosen,
  rest.divided,
  rest.tailBatching,
  ...whole,
];

describe("a comparison of rollouts", () => {
  const comparisons = [...compareRollouts(small)];

  test("has every way of every setting, and says of how good predictions it was", () => {
    expect(comparisons.map(({ predictions }) => predictions)).toEqual(["oracle", "learned"]);
    expect(comparisons.map(({ episodes }) => episodes)).toEqual([96, 96]);
    expect(comparisons[0]!.logSd).toBe(0);
    expect(comparisons[1]!.logSd).toBeGreaterThan(0.2);
    for (const comparison of comparisons) {
      expect(comparison.whole.map(({ name }) => name)).toEqual(["stay", "scaled", "anew", "pays"]);
      for (const way of ways(comparison))
        expect((way as { tokensPerSecond: number }).tokensPerSecond).toBeGreaterThan(0);
      // One of the simple ways is Verl's.
      expect(comparison.bestSimple.tokensPerSecond).toBeGreaterThanOrEqual(comparison.verl.tokensPerSecond);
    }
  });

  test("gives ways that heed no prediction the same figure under each", () => {
    const [oracle, learned] = comparisons;
    for (const name of ["verl", "hybrid", "leastLoad"] as const) expect(oracle![name]).toEqual(learned![name]);
  });

  test("proposes degrees that fill no more than there are, and have the throughput that it says", () => {
    for (const { chosen } of comparisons) {
      const sum = chosen.degrees.reduce((total, degree) => total + degree, 0);
      expect(sum).toBeGreaterThan(0);
      expect(sum).toBeLessThanOrEqual(small.gpus);
    }
  });

  test("with a known truth and room for all, degrees and placement beat one GPU a worker", () => {
    const { whole, verl } = comparisons[0]!;
    expect(Math.max(...whole.map(({ tokensPerSecond }) => tokensPerSecond))).toBeGreaterThan(verl.tokensPerSecond);
  });

  test("repeats with its seed", () => {
    expect([...compareRollouts(small)]).toEqual(comparisons);
  });

  test("reports the predictor on steps that follow those it learned from", () => {
    const [{ workload, report }] = [...reportPredictors(small)] as [WorkloadPredictor];
    expect(workload).toBe("coding");
    expect(report.rows).toContainEqual(
      expect.objectContaining({ quantity: "tokens", stage: "0", model: "oracle", logSd: 0 }),
    );
  });
});

describe("a comparison of parts", () => {
  const comparisons = [...compareParts(small)];

  test("has all parts on and each left out, beside what is simple, and repeats with its seed", () => {
    expect(comparisons).toHaveLength(small.F.length);
    for (const { without, bestSimple, verl, all, chosen, degrees } of comparisons) {
      expect(Object.keys(without).sort()).toEqual([...leftOut].sort());
      for (const speed of [...Object.values(without), all, chosen, verl]) expect(speed).toBeGreaterThan(0);
      expect(bestSimple).toBeGreaterThanOrEqual(verl);
      expect(degrees.reduce((sum, degree) => sum + degree, 0)).toBeLessThanOrEqual(small.gpus);
      // What is without unequal degrees leaves nothing out where the fastest before were equal.
      if (new Set(degrees).size === 1) expect(without.degrees).toBe(all);
    }
    expect([...compareParts(small)]).toEqual(comparisons);
  });

  test("is with the same best simple way as a comparison of rollouts", () => {
    const learned = [...compareRollouts({ ...small, predictions: ["learned"] })];
    expect(comparisons.map(({ verl, bestSimple, bestSimpleName }) => ({ verl, bestSimple, bestSimpleName }))).toEqual(
      learned.map(({ verl, bestSimple: { name, tokensPerSecond } }) => ({
        ...{ verl: verl.tokensPerSecond, bestSimple: tokensPerSecond, bestSimpleName: name },
      })),
    );
  });

  test("without placement, each worker is given its first episodes in turn", () => {
    const [F] = small.F as [(typeof small.F)[number]];
    const episodes = drawSteps(small, "search", 24, 1)[0]!.map((each) => ({ ...each, turns: each.turns.slice(0, 1) }));
    const even = {
      degrees: [4, 2, 2],
      scheduler: "rr" as const,
      placement: { type: "dp" as const },
      start: "even" as const,
    };
    const cached = { ...even, placement: { type: "cache" as const } };
    const finish = (way: Omit<Way, "name">) =>
      simulateWay(small, F, episodes, noisyForecasting(episodes, 0.5, seed), way).finish;
    expect(finish(even)).toEqual(finish(cached));
    const { start: _, ...inGroups } = even;
    expect(finish(inGroups)).not.toEqual(finish(cached));
  });

  test("PG4: what an episode may not exceed bounds what is predicted of it in a simulated step", () => {
    const episodes = drawSteps(small, "coding", 24, 1)[0]!;
    const predictor = new EpisodePredictor();
    learnSteps(predictor, drawSteps(small, "coding", 96, 2));
    const bounded = episodes.map((each) => ({ ...each, limits: { maxTokens: 7 } }));
    expect(Math.max(...learnedForecasting(predictor.state, episodes).initial)).toBeGreaterThan(100);
    for (const tokens of learnedForecasting(predictor.state, bounded).initial)
      expect(tokens).toBeLessThanOrEqual(7 + 1e-9);
  });
});

describe("of drawn steps", () => {
  const factors = fc.oneof(
    fc.record({ type: fc.constant("affine" as const), slope: fc.double({ min: 0, max: 0.2, noNaN: true }) }),
    fc.record({
      ...{ type: fc.constant("power" as const), slope: fc.double({ min: 0, max: 0.2, noNaN: true }) },
      exponent: fc.double({ min: 0.3, max: 1.6, noNaN: true }),
    }),
    fc.record({
      ...{ type: fc.constant("roofline" as const), knee: fc.integer({ min: 1, max: 12 }) },
      low: fc.double({ min: 0, max: 0.02, noNaN: true }),
      high: fc.double({ min: 0, max: 0.2, noNaN: true }),
    }),
  );
  const drawn = fc.record({
    ...{ F: factors, workload: fc.constantFrom(...workloadNames), seed: fc.nat(1e6) },
    gpus: fc.integer({ min: 1, max: 12 }),
    maxBatch: fc.integer({ min: 1, max: 30 }),
    prefillRatio: fc.constantFrom(0, 0.01, 0.2),
    logSd: fc.constantFrom(0, 0.8),
  });
  const played = fc.sample(drawn, { numRuns: 25, seed }).map(({ F, workload, logSd, ...given }) => {
    const scenario = RolloutScenario.parse({ ...small, F: [F], ...given });
    const episodes = drawSteps(scenario, workload, 48, 1)[0]!;
    const forecasting = noisyForecasting(episodes, logSd, given.seed);
    const { candidates, hybrid, leastLoad } = waysOf(scenario, F, forecasting);
    const answers = [...candidates, hybrid, leastLoad].map((way) =>
      simulateWay(scenario, F, episodes, forecasting, way),
    );
    return { answers, scenario, F, episodes, bounds: boundsOf(scenario, F, episodes) };
  });

  test("no way is faster than the longest episode alone, nor than all devices that are always busy", () => {
    for (const { answers, bounds } of played)
      for (const { throughput } of answers) {
        expect(throughput).toBeLessThanOrEqual(bounds.longest * (1 + 1e-9));
        expect(throughput).toBeLessThanOrEqual(bounds.work * (1 + 1e-9));
      }
  });

  test("one episode on the widest worker, where that is the fastest, takes as long as the bound by the longest says", () => {
    for (const { scenario, F, episodes } of played) {
      const alone = episodes.slice(0, 1);
      const degree = Math.max(...degreesThatFit(scenario));
      const way = { degrees: [degree], scheduler: "rr" as const, placement: { type: "cache" as const } };
      const { throughput } = simulateWay(scenario, F, alone, noisyForecasting(alone, 0, seed), way);
      expect(throughput).toBeCloseTo(boundsOf(scenario, F, alone).longest, 6);
    }
  });
});

test("what is chosen was fastest in the steps before, or fast enough that no equal workers were better by a tenth", () => {
  const [F] = small.F as [(typeof small.F)[number]];
  const past = drawSteps(small, "math", 96, 2).map((episodes, at) => ({
    episodes,
    forecasting: noisyForecasting(episodes, 0.3, seed + at),
  }));
  const { candidates } = waysOf(small, F, past[1]!.forecasting);
  const secondsOf = (way: Way) =>
    past.reduce(
      (product, { episodes, forecasting }) => product * simulateWay(small, F, episodes, forecasting, way).makespan,
      1,
    );
  const chosen = chooseWay(small, F, past, candidates);
  const alike = candidates.filter(({ placement }) => placement.type === chosen.placement.type);
  for (const each of alike) expect(secondsOf(chosen)).toBeLessThanOrEqual(secondsOf(each));
  const others = candidates.filter((each) => !alike.includes(each)).map(secondsOf);
  const least = Math.min(...others);
  if (chosen.placement.type === "dp") expect(secondsOf(chosen) * 1.1).toBeLessThanOrEqual(least);
  else expect(secondsOf(chosen)).toBeLessThanOrEqual(least * 1.1);
  for (const { degrees } of candidates)
    expect(degrees.reduce((sum, degree) => sum + degree, 0)).toBeLessThanOrEqual(small.gpus);
});

describe("tail batching", () => {
  const [F] = small.F as [(typeof small.F)[number]];

  test("has the tokens and the time of its races, and of one round in which those that lost are waited for", () => {
    const numPrompts = 12; // 96 episodes, 8 of a prompt; 15 begin
    const way = {
      degrees: new Array<number>(8).fill(1),
      scheduler: "rr" as const,
      placement: { type: "cache" as const },
    };
    const tokensOf = (prompt: readonly RecordedEpisode[]) =>
      prompt.flatMap(({ turns }) => turns).reduce((sum, { tokens }) => sum + tokens, 0);
    const play = (prompts: readonly (readonly RecordedEpisode[])[]) => {
      const { finish } = simulateWay(small, F, prompts.flat(), noisyForecasting(prompts.flat(), 0, seed), way);
      return prompts.map((prompt, at) => ({ prompt, end: Math.max(...finish.slice(8 * at, 8 * at + 8)) }));
    };
    let [tokens, seconds, numTrained] = [0, 0, 0];
    const late: (readonly RecordedEpisode[])[] = [];
    for (const step of drawSteps(small, "coding", 120, 4)) {
      const ended = play(Array.from({ length: 15 }, (_, at) => step.slice(8 * at, 8 * at + 8)));
      const last = ended.map(({ end }) => end).sort((a, b) => a - b)[numPrompts - 1]!;
      seconds += last;
      for (const { prompt } of ended.filter(({ end }) => end <= last))
        [tokens, numTrained] = [tokens + tokensOf(prompt), numTrained + 1];
      late.push(
        ...ended
          .filter(({ end }) => end > last)
          .sort((a, b) => a.end - b.end)
          .map(({ prompt }) => prompt),
      );
    }
    expect(late).toHaveLength(numPrompts);
    seconds += Math.max(...play(late).map(({ end }) => end));
    tokens += late.reduce((sum, prompt) => sum + tokensOf(prompt), 0);
    expect(numTrained + late.length).toBe(5 * numPrompts);
    const { name, tokensPerSecond } = tailBatching(small, "coding", 96, F, 1);
    expect(name).toBe("tail batching, degree 1");
    expect(tokensPerSecond).toBeCloseTo(tokens / seconds, 6);
  });
});

describe("predictions of a simulated step", () => {
  const steps = drawEpisodes(workloadShapes.search, { steps: 4, promptsPerStep: 6, samples: 6, prompts: 10, seed });
  const episodes = steps.at(-1)!;

  test("are the shipped predictor's, told of turns and of tools when each is over", () => {
    const predictor = new EpisodePredictor();
    learnSteps(predictor, steps.slice(0, -1));
    const { initial, forecast } = learnedForecasting(predictor.state, episodes);
    const index = episodes.findIndex(({ turns }) => turns.length > 1);
    const { prompt, contextTokens, turns } = episodes[index]!;
    for (const [i, episode] of episodes.entries()) {
      const { prompt: group, contextTokens, limits } = episode;
      predictor.begin(`${i}`, { prompt: group, group, contextTokens, limits });
    }
    const said = () => Math.max(1, Math.expm1(predictor.predict(`${index}`).tokens.logMean));
    expect([prompt, contextTokens]).toEqual([episodes[index]!.prompt, episodes[index]!.contextTokens]);
    expect(initial[index]).toBe(said());
    const { stepEnded, submitted, tokensLeft, toolSecondsLeft } = forecast();
    const { tokens, meanLogProbability, ...tool } = turns[0]!;
    expect(tokensLeft(index, 0)).toBe(initial[index]);
    predictor.turnEnded(`${index}`, { tokens, meanLogProbability });
    stepEnded(index, 1);
    expect(tokensLeft(index, 1)).toBe(said());
    predictor.toolEnded(`${index}`, tool);
    submitted(index, 1);
    expect(tokensLeft(index, 1)).toBe(said());
    expect(toolSecondsLeft(index, 1)).toBe(Math.expm1(predictor.predict(`${index}`).toolSeconds.logMean));
  });

  test("that are noisy are off by one factor an episode, of the log-sd that was asked for", () => {
    const truth = noisyForecasting(episodes, 0, seed);
    const { initial, forecast } = noisyForecasting(episodes, 0.5, seed);
    const factors = initial.map((tokens, i) => tokens / truth.initial[i]!);
    const index = episodes.findIndex(({ turns }) => turns.length > 1);
    const rest = episodes[index]!.turns.slice(1).reduce((sum, { tokens }) => sum + tokens, 0);
    expect(forecast().tokensLeft(index, 1)).toBeCloseTo(rest * factors[index]!, 6);
    const squares = factors.reduce((sum, factor) => sum + Math.log(factor) ** 2, 0);
    expect(Math.sqrt(squares / factors.length)).toBeGreaterThan(0.25);
    expect(Math.sqrt(squares / factors.length)).toBeLessThan(0.75);
  });
});

test.each(Object.entries(rolloutScenarios))("scenario %s is valid", (name, scenario) => {
  expect(RolloutScenario.parse(scenario).name).toBe(name);
});

test.each<[object, RegExp]>([
  [{ workloads: ["chess"] }, /workloads/],
  [{ predictions: ["guessed"] }, /predictions/],
  [{ episodes: [] }, /episodes/],
  [{ gpus: 0 }, /gpus/],
  [{ F: [{ type: "affine", slope: 0, max: 3 }] }, /finite up to maxBatch/],
  [{ gpus: 2, tokenTime: { 4: 0.01 } }, /no degree/],
])("a scenario of %j is refused", (wrong, message) => {
  expect(() => RolloutScenario.parse(wrong)).toThrow(message);
});
