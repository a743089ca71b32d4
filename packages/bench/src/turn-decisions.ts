import { learnedForecasting, RolloutScenario, simulateWay, waysOf } from "@treadle/simulation";
import {
  drawEpisodes,
  EpisodeOrder,
  EpisodePredictor,
  EpisodeRouter,
  GroupPlacement,
  type RecordedEpisode,
  WorkerLoads,
  workloadShapes,
} from "@treadle/trajectories";
import { type BenchRow, row } from "./row.ts";

const numEpisodes = 6400;
const samples = 16;
const F = { type: "affine", slope: 0.012 } as const;
/** On 64 devices; as many ranks of the largest size as of the smallest. */
const tokenTimes = [8, 8, 4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1].map(
  (degree) => ({ 8: 0.0063, 4: 0.008, 2: 0.0115, 1: 0.018 })[degree] as number,
);

/** Processor time of all turns: what each says, the new prediction, where the episode goes on, and its next priority. */
function decide(episodes: readonly RecordedEpisode[]): { readonly seconds: number; readonly numTurns: number } {
  const order = new EpisodeOrder({ scheduler: "pps", predictor: "learned" });
  const ids = episodes.map(({ prompt, contextTokens }, at) =>
    order.begin({ prompt, group: `${Math.floor(at / samples)}`, contextTokens }),
  );
  const predicted = ids.map((id) => order.predicted(id));
  const loads = new WorkerLoads(tokenTimes.length);
  const numRanks = tokenTimes.length;
  const group = new GroupPlacement({ placement: "predicted", migrate: "pays", own: 0, numRanks });
  for (let rank = 1; rank < numRanks; rank++) group.up(rank);
  group.conditions = { tokenTimes, logSd: predicted[0]?.logSd ?? 0, F, places: numEpisodes };
  group.begin(
    0,
    predicted.map(({ tokens }) => tokens),
  );
  group.place();
  const router = new EpisodeRouter({
    numEpisodes,
    policy: group.policy(0, loads),
    loads,
    sharedRoom: () => Number.POSITIVE_INFINITY,
  });
  const attempts = new Map<number, number>();
  for (const { episode, attempt } of router.offerAll(ids.map((id) => order.priority(id))))
    attempts.set(episode, attempt);
  let numTurns = 0;
  const generated = episodes.map(() => 0);
  const mostTurns = Math.max(...episodes.map(({ turns }) => turns.length));
  const before = process.cpuUsage();
  for (let turn = 0; turn < mostTurns; turn++) {
    for (const [episode, { turns }] of episodes.entries()) {
      const ended = turns[turn];
      if (ended === undefined) continue;
      const [id, attempt] = [ids[episode] as number, attempts.get(episode) as number];
      const generatedTokens = (generated[episode] as number) + ended.tokens;
      generated[episode] = generatedTokens;
      numTurns++;
      order.turnEnded(id, { tokens: ended.tokens });
      if (turn === turns.length - 1) {
        order.ended(id);
        router.ended(episode, attempt);
      } else {
        const { tokens: remainingTokens } = order.predicted(id);
        const orders = router.turnEnded(episode, attempt, { remainingTokens, generatedTokens, transferSeconds: 0 });
        order.toolEnded(id, { toolSeconds: ended.toolSeconds ?? 0, hasToolFailed: false, observedTokens: 1 });
        const hasLeft = orders.some((each) => each.type === "leave" && each.episode === episode);
        if (!hasLeft) router.goesOn(episode, attempt);
        const [begun] = hasLeft ? router.left(episode, attempt, order.priority(id)) : [];
        if (begun) attempts.set(episode, begun.attempt);
        else order.priority(id);
      }
    }
  }
  if (!router.isOver) throw new Error("an episode did not end");
  const { user, system } = process.cpuUsage(before);
  return { seconds: (user + system) / 1e6, numTurns };
}

/** What a step of 6400 episodes costs to decide, turn by turn, by one owner of them all. */
export function benchTurnDecisions(): BenchRow[] {
  const drawn = { steps: 2, promptsPerStep: numEpisodes / samples, samples, prompts: numEpisodes / samples, seed: 1 };
  const [learned, episodes] = drawEpisodes(workloadShapes.coding, drawn) as [RecordedEpisode[], RecordedEpisode[]];
  decide(learned); // warm
  const { seconds, numTurns } = decide(episodes);
  const scenario = RolloutScenario.parse({ gpus: 64, episodes: [numEpisodes], samples });
  const forecasting = learnedForecasting(new EpisodePredictor().state, episodes);
  const { makespan } = simulateWay(scenario, F, episodes, forecasting, waysOf(scenario, F, forecasting).placed("pays"));
  const notMeasured = "messages, the engine, and turns that end while another is decided";
  return [
    row({
      name: "decisions of a turn at 6400 episodes on 24 ranks, mean",
      value: (1000 * seconds) / numTurns,
      unit: "processor ms",
      baseline: 0.1,
      against: "what a turn may take",
      ratioAtMost: 1,
      notMeasured,
    }),
    row({
      name: "all decisions of that step",
      value: seconds,
      unit: "processor s",
      baseline: makespan,
      against: "the step, simulated",
      ratioAtMost: 0.01,
      notMeasured,
    }),
  ];
}
