/** How far estimates are from what was measured with the same model on the same devices, and what corrects them. Pure. */
import { type ComponentProfile, type ModelSizes, mean, type Profile, TreadleError } from "@treadle/contracts";
import type { Hardware } from "./costs.ts";
import { figuresNameOf, figuresOf } from "./device-figures.ts";
import { type Estimate, estimate, type ModelComponent, type RehearsedStep } from "./estimate.ts";
import type { ModelShape } from "./model-shape.ts";

/** What is estimated each by its own formula: batches, what ends a step, moves of weights, and swaps. */
export type KindOfWork = "batches" | "once" | "weights" | "swaps";

/** How far an estimate is from what was measured. */
export type Correction = {
  /** measured over estimated, the geometric mean */
  readonly factor: number;
  readonly numPoints: number;
  /** mean of |estimated - measured| / measured, as it was */
  readonly errorBefore: number;
  /** the same for each point by the factor of all the others; undefined where there is one point */
  readonly errorAfter: number | undefined;
};

export type Corrections = Partial<Readonly<Record<KindOfWork, Correction>>>;

/** Measurements that correct estimates. */
export type Calibration = {
  readonly profile: Profile;
  /** somebody says that it is of the estimated model and devices; otherwise the profile itself must say so */
  readonly isAsked: boolean;
};

/** An estimate that is further off is of another model, other devices or other lengths. */
const mostFactor = 20;

export const sizesOf = ({ parameters, layers, width, vocabSize }: ModelShape): ModelSizes => {
  return { parameters, layers, width, vocabSize };
};

const isOf = ({ model }: ComponentProfile, shape: ModelShape): boolean =>
  model !== undefined && JSON.stringify(sizesOf({ ...shape, ...model })) === JSON.stringify(sizesOf(shape));

/** The newest profile that says of itself that it has measured this workflow with that model on such devices. */
export function calibrationOf(
  profiles: readonly Profile[],
  wanted: { readonly workflow: string; readonly device: string; readonly shape: ModelShape },
): Calibration | undefined {
  const [profile] = profiles
    .filter(
      ({ workflow, hardware, components }) =>
        workflow === wanted.workflow &&
        figuresNameOf(hardware.accelerator ?? "") === wanted.device &&
        Object.values(components).some((each) => isOf(each, wanted.shape)),
    )
    .toSorted((a, b) => (a.createdAt < b.createdAt ? 1 : -1));
  return profile && { profile, isAsked: false };
}

/** `refused`: why measurements correct nothing. */
export type CorrectedBy = { readonly corrections: Corrections } | { readonly refused: string };

/**
 * Of one component, from its measurements alone and with the lengths that were measured, where the profile has them. Empty where
 * nothing of it was measured, or nothing took any time.
 */
export function correctionsOf(
  component: ModelComponent,
  { profile, isAsked }: Calibration,
  estimated: { readonly device: string } & Pick<RehearsedStep, "samples" | "ways"> &
    Pick<Hardware, "shape" | "lengths">,
): CorrectedBy {
  const measured = profile.components[component.name];
  if (measured === undefined || !(isAsked || isOf(measured, estimated.shape))) return { corrections: {} };
  const { batch } = profile.graph;
  const lengths = profile.sequences ?? estimated.lengths;
  const devices = Math.max(...measured.samples.map((sample) => sample.devices));
  let own: Estimate;
  try {
    own = estimate(
      { figures: figuresOf(estimated.device), shape: estimated.shape, lengths },
      { ...component, devicesPerRank: measured.devicesPerRank },
      {
        devices,
        batch,
        samples: Math.max(1, Math.round(profile.sequences?.perItem ?? estimated.samples)),
        ways: estimated.ways,
      },
    );
  } catch (error) {
    if (!(error instanceof TreadleError)) throw error;
    return { refused: `it was measured where it cannot have run: ${error.message}` };
  }
  const once = measured.onceSeconds ?? 0;
  const batches = measured.samples.map(({ devices: count, items, seconds }) => {
    return { seconds: seconds - (once * items) / batch, by: own.seconds(count, items, batch) };
  });
  const corrections = {
    batches: correctionOf(batches),
    once: correctionOf([{ seconds: once, by: own.onceSeconds }]),
    weights: correctionOf([{ seconds: measured.serialSeconds, by: own.serialSeconds }]),
    swaps: correctionOf(
      [measured.onloadSeconds, measured.offloadSeconds].map((seconds) => ({ seconds, by: own.swapSeconds })),
    ),
  };
  const { factor = 1 } = corrections.batches ?? {};
  if (Math.abs(Math.log(factor)) > Math.log(mostFactor))
    return {
      refused: `it was measured to take ${factor.toPrecision(2)} times what is estimated: the profile is of another model, of other devices, or of other lengths`,
    };
  return { corrections: Object.fromEntries(Object.entries(corrections).filter(([, each]) => each !== undefined)) };
}

type Point = { readonly seconds: number; readonly by: number };

function correctionOf(all: readonly Point[]): Correction | undefined {
  const points = all.filter(({ seconds, by }) => seconds > 0 && by > 0);
  if (points.length === 0) return undefined;
  const logs = points.map(({ seconds, by }) => Math.log(seconds / by));
  const sum = logs.reduce((total, each) => total + each, 0);
  const others = points.length - 1;
  const errorOf = (factors: readonly number[]): number =>
    mean(points.map(({ seconds, by }, i) => Math.abs(factors[i]! * by - seconds) / seconds));
  return {
    factor: Math.exp(sum / points.length),
    numPoints: points.length,
    errorBefore: errorOf(points.map(() => 1)),
    errorAfter: others === 0 ? undefined : errorOf(logs.map((log) => Math.exp((sum - log) / others))),
  };
}
