import type { ComparedToken, Comparison, Divergence } from "@treadle/workers";
import { formatPercent, plural, printable, significant } from "./text.ts";

type Told = Comparison & {
  readonly step: number;
  readonly policyVersion: number;
  readonly weightsId?: string | undefined;
  readonly engine: string;
  readonly alarm: number;
  readonly meanKl: number;
  readonly effectiveSamples: number;
  readonly cut: number;
  readonly numEpisodes: number;
  readonly numKept: number;
  readonly numRanks: number;
  readonly missingRanks: readonly number[];
  /** of another batch of the same step */
  readonly strayFiles: readonly string[];
  /** newer steps of which no whole batch is there */
  readonly passedOver: readonly number[];
};
type Rescored = { readonly checkpoint: number; readonly policyVersion: number } | undefined;

/** What an alarm was about, and the tokens on which policies are furthest apart. */
export function renderMismatch(batch: Told, rescored: Rescored): string {
  const { step, engine, policyVersion, weightsId, numKept, numEpisodes, tokens } = batch;
  const kept = numKept < numEpisodes ? `${numKept} of ${numEpisodes}, the furthest apart` : `all ${numEpisodes}`;
  const weights = weightsId === undefined ? "" : `, weights ${printable(weightsId)}`;
  const { numRanks, missingRanks, strayFiles, passedOver } = batch;
  const of = missingRanks.length > 0 ? ` of ${numRanks - missingRanks.length} of ${numRanks} ranks` : "";
  const lines = [
    `step ${step}: ${kept} episodes${of}, ${plural(tokens, "token")} of the policy; trained by ${printable(engine)} from policy version ${policyVersion}${weights}`,
    ...(missingRanks.length > 0
      ? [`  not whole: nothing is kept of ${listed("rank", missingRanks)}, so what is below is of the others alone`]
      : []),
    ...(strayFiles.length > 0 ? [`  left out, since of another batch: ${strayFiles.join(", ")}`] : []),
    ...(passedOver.length > 0 ? [`  newer, but not whole: ${listed("step", passedOver)}`] : []),
    `  the step's mean was ${significant(batch.meanKl)} nats a token (alarm at ${batch.alarm}); effective samples ${formatPercent(batch.effectiveSamples)}, weights cut ${formatPercent(batch.cut)}`,
    `  sampler and trainer: ${between(batch.samplerAndTrainer)}`,
  ];
  if (rescored && batch.samplerAndRescored && batch.trainerAndRescored) {
    const other =
      rescored.policyVersion === policyVersion
        ? ""
        : `; these are other weights than the trainer's, by ${Math.abs(rescored.policyVersion - policyVersion)} versions`;
    lines.push(
      `  scored again with the checkpoint of step ${rescored.checkpoint}, policy version ${rescored.policyVersion}${other}`,
      `  sampler and rescored: ${between(batch.samplerAndRescored)}`,
      `  trainer and rescored: ${between(batch.trainerAndRescored)}`,
    );
  }
  return [...lines, "", ...table(batch.worst, rescored !== undefined)].join("\n");
}

const listed = (noun: string, numbers: readonly number[]): string =>
  `${noun}${numbers.length === 1 ? "" : "s"} ${numbers.join(", ")}`;

const between = ({ tokens, meanKl, maxKl }: Divergence): string =>
  tokens === 0
    ? "no token has both log-probabilities"
    : `mean ${significant(meanKl)} nats a token, at most ${significant(maxKl)}, over ${plural(tokens, "token")}`;

function table(worst: readonly ComparedToken[], isRescored: boolean): string[] {
  const head = [
    "nats",
    "sampler",
    "trainer",
    ...(isRescored ? ["rescored"] : []),
    "token",
    "position",
    "version",
    "prompt",
  ];
  const rows = worst.map((one) => [
    significant(one.divergence),
    logprob(one.sampler),
    logprob(one.trainer),
    ...(isRescored ? [logprob(one.rescored)] : []),
    String(one.token),
    String(one.position),
    String(one.policyVersion),
    printable(one.promptId),
  ]);
  const widths = head.map((name, at) => Math.max(name.length, ...rows.map((row) => row[at]!.length)));
  const last = head.length - 1;
  return [head, ...rows].map((row) =>
    row.map((cell, at) => (at === last ? cell : cell.padStart(widths[at]!))).join("  "),
  );
}

const logprob = (value: number | undefined): string => (value === undefined ? "-" : value.toFixed(4));
