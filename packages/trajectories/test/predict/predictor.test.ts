import { TreadleError } from "@treadle/contracts";
import { beforeAll, describe, expect, test } from "vitest";
import {
  drawEpisodes,
  EpisodePredictor,
  evaluatePredictor,
  type PredictorReport,
  type RecordedEpisode,
  workloadNames,
  workloadShapes,
} from "../../src/index.ts";

const seed = Number(process.env.TREADLE_SEED);

/** One step, its episodes one after another; returns what was said before each first turn. */
function play(predictor: EpisodePredictor, step: number, episodes: readonly RecordedEpisode[]): number[] {
  const said: number[] = [];
  for (const [index, { prompt, contextTokens }] of episodes.entries()) {
    const id = `${step}/${index}`;
    predictor.begin(id, { prompt, contextTokens, group: `${step}/${prompt}` });
    said.push(predictor.predict(id).tokens.logMean);
  }
  for (const [index, { turns }] of episodes.entries()) {
    const id = `${step}/${index}`;
    for (const [turn, each] of turns.entries()) {
      predictor.turnEnded(id, each);
      if (turn < turns.length - 1) predictor.predict(id);
    }
    predictor.ended(id);
  }
  return said;
}

const steps = (count: number, shape: (typeof workloadNames)[number] = "coding") =>
  drawEpisodes(workloadShapes[shape], { steps: count, promptsPerStep: 12, samples: 8, prompts: 24, seed });

function taught(count: number): EpisodePredictor {
  const predictor = new EpisodePredictor();
  for (const [step, episodes] of steps(count).entries()) {
    play(predictor, step, episodes);
    predictor.learn();
  }
  return predictor;
}

const start = { prompt: "3", group: "x", contextTokens: 500 };
const turn = { tokens: 400, toolSeconds: 1, hasToolFailed: true, meanLogProbability: -0.4 };

describe.each(workloadNames)("on drawn %s episodes, of later steps than it learned from,", (name) => {
  let report: PredictorReport;
  const row = (stage: string, model: string, quantity = "tokens") =>
    report.rows.find((each) => each.stage === stage && each.model === model && each.quantity === quantity)!;

  beforeAll(() => {
    const drawn = { steps: 14, promptsPerStep: 24, samples: 8, prompts: 96, seed };
    report = evaluatePredictor(drawEpisodes(workloadShapes[name], drawn), { learnSteps: 7 });
  });

  test("PG1: prompt history beats a constant before the first turn, and turns tell what it cannot know", () => {
    expect(row("0", "prompt-history").logSd).toBeLessThan(row("0", "constant").logSd);
    for (const stage of ["1", "2", "3-4"]) {
      expect(row(stage, "learned").logSd).toBeLessThan(row(stage, "prompt-history").logSd);
      expect(row(stage, "learned").pearson!).toBeGreaterThan(row(stage, "prompt-history").pearson!);
    }
  });

  test("PG2: what is served is never worse than prompt history, and where learning did not help it says so", () => {
    for (const { quantity, stage, model, logSd, count } of report.rows) {
      if (model !== "served" || count < 200) continue;
      expect(logSd).toBeLessThan(1.05 * row(stage, "prompt-history", quantity).logSd);
    }
    for (const quantity of ["tokens", "toolSeconds"]) {
      const isNoBetter = row("0", "learned", quantity).logSd >= row("0", "prompt-history", quantity).logSd;
      const said = report.notBetter.filter((line) => line.startsWith(`${quantity} after 0 turns`));
      expect(said).toHaveLength(isNoBetter ? 1 : 0);
    }
  });

  test("its 80 % intervals hold 75 to 85 % of outcomes", () => {
    for (const quantity of ["tokens", "toolSeconds"]) {
      const served = report.rows.filter((each) => each.model === "served" && each.quantity === quantity);
      const count = served.reduce((sum, each) => sum + each.count, 0);
      const covered = served.reduce((sum, each) => sum + each.count * each.coverage, 0);
      expect(covered / count).toBeGreaterThan(0.75);
      expect(covered / count).toBeLessThan(0.85);
    }
  });

  test("the oracle, judged in the same way, makes no error", () => {
    expect(row("1", "oracle")).toMatchObject({ recallOfLongest: 1, logSd: 0, coverage: 1 });
    expect(row("1", "oracle", "toolSeconds").recallOfLongest).toBe(1);
    expect(row("1", "oracle").pearson).toBeCloseTo(1, 9);
  });
});

test("PG3: told of turns under way, it foretells no worse, and its intervals hold as much", () => {
  const drawn = { steps: 14, promptsPerStep: 24, samples: 8, prompts: 96, seed };
  const episodes = drawEpisodes(workloadShapes.math, drawn);
  const ofSecondTurn = (tellsProgress: boolean) => {
    const { rows } = evaluatePredictor(episodes, { learnSteps: 7, tellsProgress });
    return rows.find(({ model, quantity, stage }) => model === "served" && quantity === "tokens" && stage === "1")!;
  };
  const [untold, told] = [ofSecondTurn(false), ofSecondTurn(true)];
  expect(told).not.toEqual(untold);
  expect(told.logSd).toBeLessThan(untold.logSd + 0.02);
  expect(told.coverage).toBeGreaterThan(0.7);
  expect(told.coverage).toBeLessThan(0.9);
});

test("PG2: before anything was learned, prompt history answers, with a wide interval", () => {
  const predictor = new EpisodePredictor();
  predictor.begin("a", start);
  expect(predictor.predict("a").tokens).toMatchObject({ from: "prompt-history", logSd: 1 });
});

test("PG3: episodes that were cut speak against predictions that they have outlasted", () => {
  const [whole, cut] = [taught(4), taught(4)];
  const said = (predictor: EpisodePredictor) => {
    predictor.begin("later", { ...start, prompt: "never seen" });
    predictor.turnEnded("later", turn);
    return predictor.predict("later").tokens.models.learned.logMean;
  };
  for (let i = 0; i < 40; i++) {
    cut.begin(`${i}`, { ...start, group: `${i}`, prompt: `${i + 100}` });
    cut.turnEnded(`${i}`, turn);
    cut.predict(`${i}`);
    for (let more = 0; more < 30; more++) cut.turnEnded(`${i}`, turn);
    cut.cut(`${i}`);
  }
  for (const predictor of [whole, cut]) predictor.learn();
  expect(said(cut)).toBeGreaterThan(said(whole) + 0.1);
});

describe("PG3: what is told of a turn under way", () => {
  const siblings = ["first", "second", "third", "fourth", "fifth"];
  /** What is foretold of one sample, as the others have chosen so many tokens of their first turn. */
  const said = (tell: (predictor: EpisodePredictor, sibling: string) => void) => {
    const predictor = taught(4);
    for (const id of ["asked", ...siblings]) predictor.begin(id, start);
    for (const sibling of siblings) tell(predictor, sibling);
    return predictor.predict("asked").tokens.models.learned.logMean;
  };
  const few = said(() => {});

  test("counts as a lower bound of siblings, the more, the more it is", () => {
    let least = few;
    for (const tokens of [4000, 16_000, 64_000]) {
      const foretold = said((predictor, sibling) => predictor.generating(sibling, tokens));
      expect(foretold).toBeGreaterThan(least + 0.05);
      least = foretold;
    }
    expect(said((predictor, sibling) => predictor.generating(sibling, 1))).toBeCloseTo(few, 6);
  });

  test("counts once when the turn ends, and is forgotten where the turn begins again", () => {
    const ended = said((predictor, sibling) => {
      predictor.generating(sibling, 2000);
      predictor.generating(sibling, 3000);
      predictor.turnEnded(sibling, { tokens: 4000 });
    });
    expect(ended).toBe(said((predictor, sibling) => predictor.turnEnded(sibling, { tokens: 4000 })));
    const again = said((predictor, sibling) => {
      predictor.generating(sibling, 4000);
      predictor.generating(sibling, 0);
    });
    expect(again).toBe(few);
  });

  test("is what an episode had which is cut in it", () => {
    const state = (tell: (predictor: EpisodePredictor, id: string) => void) => {
      const predictor = taught(4);
      for (let i = 0; i < 40; i++) {
        predictor.begin(`${i}`, { ...start, group: `${i}`, prompt: `${i + 100}` });
        predictor.predict(`${i}`);
        tell(predictor, `${i}`);
        predictor.cut(`${i}`);
      }
      predictor.learn();
      return predictor.state;
    };
    const told = state((predictor, id) => predictor.generating(id, 12_000));
    expect(told).toEqual(state((predictor, id) => predictor.turnEnded(id, { tokens: 12_000 })));
    expect(told).not.toEqual(state(() => {}));
  });
});

test("an episode that goes on into the next step is known there, and teaches once when it ends", () => {
  const predictor = taught(3);
  predictor.begin("carried", start);
  predictor.predict("carried");
  predictor.turnEnded("carried", turn);
  predictor.learn();
  expect(predictor.predict("carried").tokens.logMean).toBeGreaterThan(0);
  predictor.turnEnded("carried", turn);
  predictor.ended("carried");
  predictor.learn();
  expect(() => predictor.predict("carried")).toThrow("episode 'carried' has not begun");
});

test("a tool that is told of on its own counts as if its turn had said it", () => {
  const predictor = taught(3);
  const { tokens, meanLogProbability, ...tool } = { ...turn, observedTokens: 30 };
  for (const id of ["together", "apart"]) predictor.begin(id, { ...start, group: id });
  predictor.turnEnded("together", { tokens, meanLogProbability, ...tool });
  predictor.turnEnded("apart", { tokens, meanLogProbability });
  expect(predictor.predict("apart")).not.toEqual(predictor.predict("together"));
  predictor.toolEnded("apart", tool);
  expect(predictor.predict("apart")).toEqual(predictor.predict("together"));
});

test("it forgets: when answers become three times as long, so do predictions, within a few steps", () => {
  const predictor = taught(6);
  const longer = steps(6).map((episodes) =>
    episodes.map((episode) => ({
      ...episode,
      turns: episode.turns.map((each) => ({ ...each, tokens: 3 * each.tokens })),
    })),
  );
  const average = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const said = longer.map((episodes, step) => {
    const before = play(predictor, 100 + step, episodes);
    predictor.learn();
    return average(before);
  });
  expect(said.at(-1)! - said[0]!).toBeGreaterThan(0.6 * Math.log(3));
});

describe("what it has learned", () => {
  test("goes through JSON, and predicts as before", () => {
    const predictor = taught(4);
    const copy = new EpisodePredictor(JSON.parse(JSON.stringify(predictor.state)));
    const [episodes] = steps(1);
    expect(play(copy, 9, episodes!)).toEqual(play(predictor, 9, episodes!));
    copy.learn();
    predictor.learn();
    expect(copy.state).toEqual(predictor.state);
  });

  test.each<[string, (state: EpisodePredictor["state"]) => unknown, string]>([
    ["another version", (state) => ({ ...state, version: 2 }), "version: '2' is not allowed"],
    ["another shape", (state) => ({ ...state, tokens: {} }), "tokens.models: is missing"],
    [
      "weights of other features",
      (state) => {
        const { models } = state.tokens;
        return {
          ...state,
          tokens: { ...state.tokens, models: { ...models, later: { ...models.later, weights: [1] } } },
        };
      },
      "tokens.models.later.weights",
    ],
    ["no object", () => null, "input: "],
  ])("is refused when it is of %s", (_, change, message) => {
    expect(() => new EpisodePredictor(change(new EpisodePredictor().state))).toThrow(message);
  });
});

test.each([-1, Number.NaN, Number.POSITIVE_INFINITY])("a turn under way of %s tokens is refused", (tokens) => {
  const predictor = new EpisodePredictor();
  predictor.begin("a", start);
  expect(() => predictor.generating("a", tokens)).toThrow(/'a' .*'(?:-1|NaN|Infinity)' tokens/);
});

test.each<[string, (predictor: EpisodePredictor) => unknown, string]>([
  ["a turn of NaN tokens", (p) => p.turnEnded("a", { tokens: Number.NaN }), "tokens: "],
  ["a turn of negative seconds", (p) => p.turnEnded("a", { tokens: 1, toolSeconds: -1 }), "toolSeconds: '-1'"],
  ["an episode twice", (p) => p.begin("a", start), "episode 'a' has begun already"],
  ["an episode that nobody began", (p) => p.predict("b"), "episode 'b' has not begun"],
  ["a tool before any turn", (p) => p.toolEnded("a", { toolSeconds: 1 }), "episode 'a' has called no tool"],
  ["turns after the end", (p) => [p.ended("a"), p.turnEnded("a", turn)], "episode 'a' is over"],
])("refuses %s", (_, act, message) => {
  const predictor = new EpisodePredictor();
  predictor.begin("a", start);
  try {
    act(predictor);
    expect.unreachable();
  } catch (error) {
    if (!(error instanceof TreadleError)) throw error;
    expect(error.message).toContain(message);
  }
});
