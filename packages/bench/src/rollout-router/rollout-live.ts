/**
 * Steps of the three workloads of Heddle §7, as ranks of a run play them, and the same steps simulated. All is on virtual time
 * in this process: the engines are emulated, the ranks' decisions and messages are the shipped ones. One token stands for ten of
 * the workload and takes ten times as long.
 */
import { randomInt } from "node:crypto";
import type { Prompt } from "@treadle/contracts";
import { hashString } from "@treadle/learning";
import {
  chooseWay,
  learnedForecasting,
  type PastStep,
  RolloutScenario,
  simulateWay,
  type Way,
  waysOf,
} from "@treadle/simulation";
import {
  drawEpisodes,
  EpisodeOrder,
  EpisodePredictor,
  learnSteps,
  MeasuredInterference,
  type ModelName,
  type PredictorState,
  type RecordedEpisode,
  workloadNames,
  workloadShapes,
} from "@treadle/trajectories";
import { historyKey } from "@treadle/workers";
import { z } from "zod";
import { type BenchRow, row } from "../row.ts";
import { type LiveWay, playLive, sampling } from "./live-step.ts";
import type { Script } from "./workload.ts";

type Workload = (typeof workloadNames)[number];

const samples = 16;
const tokenScale = 10;
const numLearned = 3;

/** By how much an episode slows down each of those beside it; of no real engine here. */
const slopes = [0.04, 0.012] as const;

type Size = { readonly gpus: number; readonly episodes: number };

/** Heddle's figures are of 64. */
const usualDevices = 16;
const episodesPerDevice = 100;

const scenarioOf = ({ gpus, episodes }: Size, seed: number): RolloutScenario =>
  RolloutScenario.parse({
    ...{ gpus, episodes: [episodes], samples, seed },
    tokenTime: { 1: 0.018 * tokenScale, 2: 0.0115 * tokenScale, 4: 0.008 * tokenScale, 8: 0.0063 * tokenScale },
    // What moves is read again where it goes on.
    migration: { base: 0.0002, perToken: 0.01 * 0.018 * tokenScale },
  });

/** A step to play, what is known before it, and the ways to play it. */
type Setting = {
  readonly scenario: RolloutScenario;
  readonly F: { readonly type: "affine"; readonly slope: number };
  readonly episodes: readonly RecordedEpisode[];
  readonly prompts: readonly Prompt[];
  readonly state: PredictorState;
  readonly past: readonly PastStep[];
};

export function settingOf(workload: Workload, size: Size, slope: number, seed: number): Setting {
  const scenario = scenarioOf(size, seed);
  const promptsPerStep = size.episodes / samples;
  const drawn = { steps: numLearned + 1, promptsPerStep, samples, prompts: 2 * promptsPerStep, seed };
  const contextTokens = Math.round(workloadShapes[workload].contextTokens / tokenScale);
  const limits = { maxTokens: sampling.maxTokens, contextTokens: contextLength };
  // A prompt is its own number, and as long as all others.
  const tokensOf = (prompt: string) => new Int32Array(contextTokens).fill(1).fill(3 + Number(prompt), 0, 1);
  const raw = drawEpisodes(workloadShapes[workload], drawn);
  const steps = raw.map((step) =>
    step.map(
      ({ prompt, turns }): RecordedEpisode => ({
        prompt: historyKey(tokensOf(prompt)),
        contextTokens,
        limits,
        turns: turns.map(({ tokens, observedTokens = 0, ...turn }) => ({
          ...turn,
          tokens: Math.ceil(tokens / tokenScale),
          observedTokens: Math.ceil(observedTokens / tokenScale),
          // What an emulated engine says of every token.
          meanLogProbability: -Math.log(vocabSize),
        })),
      }),
    ),
  );
  const prompts = raw.at(-1)!.map(({ prompt }, at) => ({
    // A prompt that is drawn twice is another group.
    id: `${Math.floor(at / samples)}`,
    tokens: tokensOf(prompt),
  }));
  const predictor = new EpisodePredictor();
  const past = steps.slice(0, -1).map((episodes) => {
    const forecasting = learnedForecasting(predictor.state, episodes);
    learnSteps(predictor, [episodes]);
    return { episodes, forecasting };
  });
  const episodes = steps.at(-1)!;
  return { scenario, F: { type: "affine", slope }, episodes, prompts, state: predictor.state, past: past.slice(-2) };
}

const vocabSize = 16;
const contextLength = 65_536;

const profileOf = ({ scenario: { maxBatch, prefillRatio, tokenTime }, F }: Setting, devices: number) => ({
  devices,
  tokenTime,
  slots: maxBatch,
  decode: { baseSeconds: 1 - F.slope, unitSeconds: F.slope },
  prefillSteps: prefillRatio,
  vocabSize,
  contextLength,
});

/** Episodes as scripts; the engine's lengths are theirs. */
function scriptsOf({ episodes, prompts }: Setting): Script[] {
  return episodes.map(({ turns }, at): Script => {
    const turnTokens = new Map<number, number>();
    let from = 0;
    for (const { tokens, observedTokens = 0 } of turns) {
      turnTokens.set(from, tokens);
      from += tokens + observedTokens;
    }
    return {
      prompt: prompts[at] as Prompt,
      name: `${at}`,
      key: hashString(`${at}`),
      turnTokens,
      tools: turns.slice(0, -1).map(({ toolSeconds = 0, hasToolFailed = false, observedTokens = 0 }) => ({
        answer: new Int32Array(observedTokens).fill(3),
        toolSeconds,
        hasToolFailed,
      })),
    };
  });
}

type Played = { readonly seconds: number; readonly simulatedSeconds: number; readonly numMoves: number };

/** Beside the baseline, which is always played. */
const simpleNames = ["least-load", "hybrid", "simple", "chosen"] as const;
const placedNames = ["whole", "equal", "no-order", "no-placement", "no-moves", "constant", "history"] as const;
const wayNames = [...simpleNames, ...placedNames] as const;
type WayName = (typeof wayNames)[number];

type Changes = Partial<LiveWay> & { readonly predictor?: ModelName };

/** A way, live and simulated; `changes` are the live one's alone. */
export async function playWay(setting: Setting, way: Way, changes: Changes = {}): Promise<Played> {
  const { scenario, F, episodes, state } = setting;
  const { predictor = "learned", ...other } = changes;
  const sharing: LiveWay =
    way.placement.type === "dp"
      ? { placement: "predicted", migrate: way.rule ?? "never" }
      : { placement: "own", migrate: "never" };
  const { degrees, scheduler } = way;
  // Ranks that share take whole prompts; else each sample is at a rank of its own, as it is simulated.
  const isShared = sharing.placement !== "own";
  const ownerOf = (at: number) => (isShared ? Math.floor(at / samples) : at) % degrees.length;
  const scripts = scriptsOf(setting);
  const { ms, numMoves, made } = await playLive({
    ...sharing,
    ...other,
    F,
    step: 1,
    profiles: degrees.map((devices) => profileOf(setting, devices)),
    tokenTimes: degrees.map((degree) => scenario.tokenTime[degree] as number),
    learned: degrees.map(() => ({
      order: new EpisodeOrder({ scheduler, predictor, state }),
      measured: new MeasuredInterference(scenario.maxBatch),
    })),
    drawn: degrees.map((_, rank) => scripts.filter((_, at) => ownerOf(at) === rank)),
  });
  checkTokens(episodes, made);
  const { makespan } = simulateWay(scenario, F, episodes, learnedForecasting(state, episodes), way);
  return { seconds: ms / 1000, simulatedSeconds: makespan, numMoves };
}

/** Every episode has all of its tokens, or the figure is of something else. */
function checkTokens(episodes: readonly RecordedEpisode[], made: ReadonlyMap<string, { readonly tokens: Int32Array }>) {
  for (const [at, { turns }] of episodes.entries()) {
    const expected = turns.reduce(
      (sum, { tokens, observedTokens = 0 }, turn) => sum + tokens + (turn < turns.length - 1 ? observedTokens : 0),
      0,
    );
    const tokens = made.get(`${at}`)?.tokens.length;
    if (tokens !== expected) throw new Error(`episode ${at} has ${tokens} tokens, and the workload ${expected}`);
  }
}

/** What is left out, one at a time, by what `TREADLE_WAYS` calls it. */
const ablations: readonly (readonly [WayName, string, (way: Way) => Way, Changes])[] = [
  ["no-order", "without the longest first", (way) => ({ ...way, scheduler: "rr" }), {}],
  ["no-placement", "without placement, moves where they pay", (way) => way, { placement: "own" }],
  [
    "no-moves",
    "without moves",
    ({ rule: _, ...way }) => ({ ...way, placement: { ...way.placement, migrate: false } }),
    {},
  ],
  ["constant", "by constant predictions", (way) => way, { predictor: "constant" }],
  ["history", "by prompt history", (way) => way, { predictor: "prompt-history" }],
];

const notMeasured = "the processor's time, links of several hosts, training, and engines that displace";

export async function* benchRolloutLive(): AsyncIterable<BenchRow> {
  const seed = process.env.TREADLE_SEED ? Number(process.env.TREADLE_SEED) : randomInt(2 ** 31);
  const gpus = Number(process.env.TREADLE_DEVICES ?? usualDevices);
  const size = { gpus, episodes: episodesPerDevice * gpus };
  const workloads = z.array(z.enum(workloadNames)).parse(process.env.TREADLE_WORKLOADS?.split(",") ?? workloadNames);
  const named = z.array(z.enum(wayNames)).parse(process.env.TREADLE_WAYS?.split(",") ?? wayNames);
  const slopesOf = z.array(z.coerce.number().nonnegative()).parse(process.env.TREADLE_SLOPES?.split(",") ?? slopes);
  for (const slope of slopesOf)
    for (const workload of workloads)
      yield* compare(
        `${workload}, ${gpus} devices, F slope ${slope}`,
        settingOf(workload, size, slope, seed),
        new Set(named),
      );
}

async function* compare(where: string, setting: Setting, named: ReadonlySet<WayName>): AsyncIterable<BenchRow> {
  const { scenario, F, episodes, state, past } = setting;
  const forecasting = learnedForecasting(state, episodes);
  const { verl, hybrid, leastLoad, simples, candidates, placed } = waysOf(scenario, F, forecasting);
  const chosen = chooseWay(scenario, F, past, candidates);
  const listed = candidates.filter(({ name }) => name === placed("pays").name);
  const whole = chooseWay(scenario, F, past, listed);
  const simulated = (way: Way) => simulateWay(scenario, F, episodes, forecasting, way).makespan;
  const fastest = (ways: readonly Way[]) => ways.reduce((a, b) => (simulated(b) < simulated(a) ? b : a));
  const simple = fastest(simples);
  const baseline = await playWay(setting, verl);
  const against = (way: string, { seconds, simulatedSeconds, numMoves }: Played) =>
    row({
      name: `${where}: ${way}`,
      value: seconds,
      unit: "virtual s",
      baseline: baseline.seconds,
      against: `one device a rank, each keeps what it took, rr (seed ${scenario.seed}; simulated ${(simulatedSeconds / baseline.simulatedSeconds).toFixed(2)}; live is ${(seconds / simulatedSeconds).toFixed(3)} of simulated; ${numMoves} moves)`,
      notMeasured,
    });
  yield against("that itself", baseline);
  // Live, an episode stays where it has begun.
  if (named.has("least-load"))
    yield against(
      "least load (simulated: at each turn)",
      await playWay(setting, leastLoad, { placement: "least-load" }),
    );
  if (named.has("hybrid"))
    yield row({
      name: `${where}: hybrid, simulated alone`,
      value: simulated(hybrid),
      unit: "virtual s",
      baseline: simulated(verl),
      against: `the first way, simulated (seed ${scenario.seed})`,
      notMeasured,
    });
  if (named.has("simple")) yield against(`best simple in hindsight (${simple.name})`, await playWay(setting, simple));
  if (named.has("chosen") && chosen !== simple && chosen !== whole)
    yield against(`chosen (${chosen.name})`, await playWay(setting, chosen));
  const mark = chosen === whole ? ", chosen" : "";
  if (named.has("whole")) yield against(`all parts (${widths(whole)}${mark})`, await playWay(setting, whole));
  const equal = fastest(candidates.filter(({ name }) => name.endsWith("placed")));
  if (named.has("equal")) yield against(`all parts on equal degrees (${widths(equal)})`, await playWay(setting, equal));
  for (const [key, name, without, changes] of ablations)
    if (named.has(key)) yield against(`all parts ${name}`, await playWay(setting, without(whole), changes));
}

/** Such as `2 × 8, 48 × 1`. */
const widths = ({ degrees }: Way): string =>
  [...new Set(degrees)].map((degree) => `${degrees.filter((each) => each === degree).length} × ${degree}`).join(", ");
