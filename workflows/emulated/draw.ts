/**
 * Workloads that nobody chose: `treadle compare workflows/emulated --random <count>` draws them here, and makes one that
 * fails smaller. Equal seeds give equal workloads.
 *
 * A step of turns takes some seconds, so that what processes and messages cost besides stays small beside it.
 */
import { createRandom, type Random } from "treadle/learning";
import type { z } from "zod";
import type { Stage } from "./run.ts";

type StageInput = z.input<typeof Stage>;
type Engine = StageInput["engine"];

export type Drawn = {
  readonly devices: number;
  /** items of a step */
  readonly batch: number;
  /** the first two stages answer each other in so many turns */
  readonly turns: number | undefined;
  /** each takes from stages before it; the first generates, those that nobody takes from train, the others score */
  readonly stages: readonly DrawnStage[];
};

type DrawnStage = {
  readonly name: string;
  readonly from: readonly string[];
  readonly devicesPerRank: number;
  readonly mostRanks: number | undefined;
  /** where it trains */
  readonly gang: boolean;
  /** for one of its items, on one device */
  readonly itemSeconds: number;
  readonly baseSeconds: number;
  readonly optimStepSeconds: number;
  readonly medianTokens: number;
  readonly lengthSpread: number;
  readonly engine: Pick<Engine, "alpha" | "durationSpread" | "residentBytes" | "onloadSeconds" | "offloadSeconds">;
};

const memoryPerDeviceMiB = 81_920;
/** Ranks are processes, and twice as many take twice as long to start. */
const mostProcesses = 28;
const cycleTurns = 8;

/** The workload `index` of a seed. */
export function draw(seed: number, index: number): Drawn {
  const random = createRandom(`emulated ${seed}`).split(index);
  for (let attempt = 0; ; attempt++) {
    const drawn = drawOne(random.split(attempt));
    if (drawn.stages.reduce((sum, _, i) => sum + ranksOf(drawn, i), 0) <= mostProcesses) return drawn;
  }
}

function drawOne(random: Random): Drawn {
  const devices = 2 + random.integer(15);
  const batch = 8 + random.integer(73);
  const numStages = 2 + random.integer(6);
  const inCycle = numStages >= 3 && random.float() < 0.2;
  const names = random.shuffle(["reward", "reference", "values", "filter", "advantages", "judge"]);
  const first = inCycle ? ["simulator", "policy"] : ["rollout"];
  const isTight = random.float() < 0.4;
  const stages = [...first, ...names.slice(0, numStages - first.length - 1), "actor"].map((name, i, all) =>
    drawStage(name, all.slice(inCycle ? 1 : 0, i), { devices, batch, isTight, isAlone: inCycle && i < 2 }, random),
  );
  // Most often what nobody else takes from goes to the actor, and there is one trainer.
  const taken = new Set(stages.flatMap(({ from }) => from));
  const open = stages.slice(inCycle ? 1 : 0, -1).filter(({ name }) => !taken.has(name));
  const actor = stages.at(-1) as DrawnStage;
  const joined = { ...actor, from: [...actor.from, ...open.map(({ name }) => name)] };
  const whole = random.float() < 0.75 ? [...stages.slice(0, -1), joined] : stages;
  return { devices, batch, turns: inCycle ? cycleTurns : undefined, stages: whole };
}

type Around = {
  readonly devices: number;
  readonly batch: number;
  readonly isTight: boolean;
  /** it has one rank, whatever there is room for */
  readonly isAlone: boolean;
};

function drawStage(name: string, before: readonly string[], around: Around, random: Random): DrawnStage {
  const { devices, batch, isTight, isAlone } = around;
  const wanted = random.float() < 0.35 ? 2 : 1;
  const from = random.float() < 0.5 ? before.slice(-wanted) : random.shuffle(before).slice(0, wanted);
  const devicesPerRank = Math.min(devices, [1, 1, 1, 2, 2, 3, 4][random.integer(7)] as number);
  const most = Math.floor(devices / devicesPerRank);
  const mostRanks = random.float() < 0.3 ? 1 + random.integer(most) : undefined;
  const alpha = random.float() < 0.5 ? 1 : between(0.6, 0.95, random);
  const ranks = isAlone ? 1 : Math.min(most, mostRanks ?? most);
  const memory = isTight
    ? {
        residentBytes: Math.round(memoryPerDeviceMiB * 2 ** 20 * (0.2 + 0.75 * random.float())),
        onloadSeconds: between(0.04, 0.8, random),
        offloadSeconds: between(0.04, 0.8, random),
      }
    : {};
  return {
    name,
    from,
    devicesPerRank,
    mostRanks,
    gang: random.split("gang").float() < 0.5,
    itemSeconds: round((between(0.24, 2, random) * ranks * devicesPerRank ** alpha) / batch),
    baseSeconds: random.float() < 0.4 ? between(0.008, 0.12, random) : 0,
    optimStepSeconds: random.float() < 0.5 ? between(0.02, 0.2, random) : 0,
    medianTokens: 40 + random.integer(160),
    lengthSpread: random.float() < 0.5 ? between(0.1, 0.8, random) : 0,
    engine: {
      alpha,
      ...(random.float() < 0.3 ? { durationSpread: between(0.02, 0.1, random) } : {}),
      ...memory,
    },
  };
}

const round = (value: number): number => Number(value.toPrecision(3));

/** Evenly in the logarithm. */
const between = (least: number, most: number, random: Random): number =>
  round(least * (most / least) ** random.float());

const isInCycle = ({ turns }: Drawn, index: number): boolean => turns !== undefined && index < 2;

function ranksOf(drawn: Drawn, index: number): number {
  const { devicesPerRank, mostRanks } = drawn.stages[index] as DrawnStage;
  const most = Math.floor(drawn.devices / devicesPerRank);
  return isInCycle(drawn, index) ? 1 : Math.min(most, mostRanks ?? most);
}

/** The configuration of the workflow. */
export function configOf(drawn: Drawn): object {
  const { devices, batch, turns, stages } = drawn;
  return {
    batch,
    ...(turns === undefined ? {} : { turns }),
    cluster: { devices, memoryPerDeviceMiB },
    stages: Object.fromEntries(stages.map((stage, i) => [stage.name, stageOf(drawn, stage, i)])),
  };
}

function stageOf(drawn: Drawn, stage: DrawnStage, index: number): StageInput {
  const { name, devicesPerRank, mostRanks, engine } = stage;
  const consumers = drawn.stages.filter(({ from }) => from.includes(name));
  const flow = {
    takes: stage.from.map((from) => `${from}-to-${name}`),
    puts: consumers.map((consumer) => `${name}-to-${consumer.name}`),
  };
  const cost = { unitSeconds: stage.itemSeconds, baseSeconds: stage.baseSeconds };
  const perTurn = drawn.turns === undefined ? cost : { ...cost, unitSeconds: round(cost.unitSeconds / drawn.turns) };
  if (isInCycle(drawn, index)) {
    const ends =
      index === 0
        ? { work: "simulate" as const, takes: ["actions"], puts: ["observations"] }
        : { work: "act" as const, takes: ["observations"], puts: ["actions", ...flow.puts] };
    return { ...ends, devicesPerRank, ranks: { fixed: 1 }, engine: { ...engine, logprobs: perTurn } };
  }
  const layout = { devicesPerRank, ...(mostRanks === undefined ? {} : { ranks: { max: mostRanks } }) };
  if (index === 0) {
    const { medianTokens, lengthSpread, itemSeconds, baseSeconds } = stage;
    // A decoding step of all sequences takes its base once.
    const decode = { unitSeconds: round(itemSeconds / medianTokens), baseSeconds: round(baseSeconds / medianTokens) };
    const { durationSpread: _, ...rest } = engine;
    const response = { medianTokens, spread: lengthSpread };
    return { work: "generate", takes: ["prompts"], puts: flow.puts, ...layout, engine: { ...rest, decode, response } };
  }
  if (flow.puts.length > 0) return { work: "score", ...flow, ...layout, engine: { ...engine, logprobs: cost } };
  const { optimStepSeconds } = stage;
  const gang = stage.gang ? { gang: true } : {};
  return { work: "train", ...flow, ...layout, ...gang, engine: { ...engine, training: cost, optimStepSeconds } };
}

/** Workloads that lack one thing which this one has, the largest things first. */
export function* smaller(drawn: Drawn): Generator<Drawn> {
  const { devices, batch, stages, turns } = drawn;
  const first = turns === undefined ? 1 : 2;
  for (const gone of stages.slice(first)) {
    if (stages.length - first > 1) yield { ...drawn, stages: without(stages, gone) };
  }
  const widest = Math.max(...stages.map(({ devicesPerRank }) => devicesPerRank));
  for (const fewer of new Set([devices >> 1, devices - 1])) {
    if (fewer >= Math.max(2, widest)) yield { ...drawn, devices: fewer };
  }
  if (batch >= 16) yield { ...drawn, batch: batch >> 1 };
  for (const less of withLess) {
    const plain = stages.map(less);
    if (plain.some((stage, i) => JSON.stringify(stage) !== JSON.stringify(stages[i])))
      yield { ...drawn, stages: plain };
  }
}

/** Those that took from it take from what it took from. */
function without(stages: readonly DrawnStage[], gone: DrawnStage): DrawnStage[] {
  return stages
    .filter((stage) => stage !== gone)
    .map((stage) => ({
      ...stage,
      from: [...new Set(stage.from.flatMap((name) => (name === gone.name ? gone.from : [name])))],
    }));
}

/** One feature less, in all stages. */
const withLess: readonly ((stage: DrawnStage) => DrawnStage)[] = [
  ({ engine: { durationSpread: _, ...engine }, ...stage }) => ({ ...stage, engine }),
  ({ engine: { alpha, durationSpread }, ...stage }) => ({
    ...stage,
    engine: { alpha, ...(durationSpread === undefined ? {} : { durationSpread }) },
  }),
  (stage) => ({ ...stage, lengthSpread: 0 }),
  (stage) => ({ ...stage, baseSeconds: 0, optimStepSeconds: 0 }),
  (stage) => ({ ...stage, from: stage.from.slice(0, 1) }),
  (stage) => ({ ...stage, engine: { ...stage.engine, alpha: 1 } }),
  (stage) => ({ ...stage, gang: false }),
  (stage) => ({ ...stage, devicesPerRank: 1 }),
  (stage) => ({ ...stage, mostRanks: undefined }),
];
