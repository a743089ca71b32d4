import { deepStrictEqual } from "node:assert/strict";
import { randomInt } from "node:crypto";
import { type Completion, median } from "@treadle/contracts";
import { EpisodeOrder, MeasuredInterference, type ModelName } from "@treadle/trajectories";
import { type BenchRow, row } from "../row.ts";
import { type Learned, type LiveWay, playLive } from "./live-step.ts";
import { drawStep } from "./workload.ts";

/** What a step is as long as: what a rank has to do, or its longest episode, which nobody can share. */
const loads = {
  "bound by its ranks": { slots: 4, mostTurns: 16 },
  "bound by its longest episode": { slots: 12, mostTurns: 40 },
} as const;
type Load = keyof typeof loads;

const predictors = ["learned", "constant"] as const satisfies readonly ModelName[];

/** What ranks do that share nothing: each keeps what it took, the longest first. */
const alone: LiveWay = { placement: "own", migrate: "never" };
const ways: readonly LiveWay[] = [
  { placement: "own", migrate: "pays" },
  { placement: "least-load", migrate: "never" },
  { placement: "least-load", migrate: "pays" },
  { placement: "predicted", migrate: "never" },
  { placement: "predicted", migrate: "pays" },
];

const prefillRatio = 0.1;

const profileOf = (slots: number) => ({
  slots,
  decode: { baseSeconds: 0.001, unitSeconds: 0.000_04 },
  prefillSteps: prefillRatio,
  response: { medianTokens: 40, spread: 0.5 },
  vocabSize: 16,
  contextLength: 8192,
});

type RouterBenchOptions = {
  readonly seed: number;
  /** that predictors learn from, before those that count */
  readonly numLearning: number;
  readonly numSteps: number;
};

/** One way's steps, each beside the same step where ranks share nothing. */
type Compared = {
  readonly way: LiveWay;
  readonly ms: readonly number[];
  readonly aloneMs: readonly number[];
  readonly numMoves: number;
  /** processor time that sharing took more, an episode */
  readonly cpuMicros: number;
};

/** All ways make the same tokens, or this throws. */
export async function compareWays(
  load: Load,
  predictor: ModelName,
  { seed, numLearning, numSteps }: RouterBenchOptions,
): Promise<Compared[]> {
  const { slots, mostTurns } = loads[load];
  const players = [alone, ...ways].map((way) => ({
    way,
    ms: [] as number[],
    numMoves: 0,
    cpuMicros: 0,
    learned: undefined as Learned[] | undefined,
  }));
  let numEpisodes = 0;
  for (let step = 0; step < numLearning + numSteps; step++) {
    const drawn = drawStep(seed, step, mostTurns);
    let expected: ReadonlyMap<string, Completion> | undefined;
    for (const player of players) {
      player.learned ??= drawn.map(() => ({
        order: new EpisodeOrder({ scheduler: "pps", predictor }),
        measured: new MeasuredInterference(slots),
      }));
      const before = process.cpuUsage();
      const { ms, numMoves, made } = await playLive({
        ...player.way,
        profiles: drawn.map(() => profileOf(slots)),
        F: { type: "affine", slope: 0.04 },
        learned: player.learned,
        step,
        drawn,
      });
      const { user, system } = process.cpuUsage(before);
      expected ??= made;
      deepStrictEqual(made, expected, `'${nameOf(player.way)}' has other tokens than ranks that share nothing`);
      if (step < numLearning) continue;
      player.ms.push(ms);
      player.numMoves += numMoves;
      player.cpuMicros += user + system;
    }
    if (step >= numLearning) numEpisodes += expected?.size ?? 0;
  }
  const [own, ...others] = players as [(typeof players)[number], ...typeof players];
  return others.map(({ way, ms, numMoves, cpuMicros }) => ({
    way,
    ms,
    aloneMs: own.ms,
    numMoves,
    cpuMicros: (cpuMicros - own.cpuMicros) / numEpisodes,
  }));
}

const nameOf = ({ placement, migrate }: LiveWay): string => `placement ${placement}, migrate ${migrate}`;

/**
 * Rollout steps of 192 episodes of several turns, of heavy-tailed length, on four emulated ranks: they share
 * them, or each keeps what it took. Time is virtual, decisions and messages are those of a run.
 */
export async function* benchRolloutRouter(): AsyncIterable<BenchRow> {
  const seed = process.env.TREADLE_SEED ? Number(process.env.TREADLE_SEED) : randomInt(2 ** 31);
  const options = { seed, numLearning: 3, numSteps: 5 };
  for (const load of Object.keys(loads) as Load[]) {
    for (const predictor of predictors) {
      const compared = await compareWays(load, predictor, options);
      for (const { way, ms, aloneMs, numMoves } of compared) {
        const ratios = ms.map((each, step) => each / (aloneMs[step] as number)).sort((a, b) => a - b);
        const range = `${ratios[0]?.toFixed(2)} to ${ratios.at(-1)?.toFixed(2)}`;
        yield row({
          name: `rollout step ${load}, ${predictor} predictor, ${nameOf(way)}`,
          value: median(ms),
          unit: "virtual ms",
          baseline: median(aloneMs),
          against: `each rank keeps what it took (seed ${seed}; steps ${range}, ${Math.round(numMoves / ms.length)} moves each)`,
          notMeasured: "the processor's time, links of several hosts, training, and engines that displace",
        });
      }
      const micros = median(compared.map(({ cpuMicros }) => cpuMicros));
      yield row({
        name: `processor time that sharing takes more, an episode, step ${load}, ${predictor} predictor`,
        value: micros,
        unit: "µs",
        notMeasured: "encoding and sockets: the ranks are in one process",
      });
    }
  }
}
