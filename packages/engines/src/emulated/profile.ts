import { type TagMemory, TreadleError } from "@treadle/contracts";
import { z } from "zod";

const seconds = z.number().nonnegative();

/** `baseSeconds + unitSeconds * units / devices ** alpha`: a fixed part that more devices do not shorten, and the rest. */
const Cost = z.strictObject({ baseSeconds: seconds.default(0), unitSeconds: seconds.default(0) });
export type Cost = z.infer<typeof Cost>;

/** What an emulated engine costs in time and memory, as measured of a real one or as assumed. */
export const EmulatedProfile = z.strictObject({
  devices: z.int().positive().default(1),
  /** How well work spreads over devices: 1 is perfectly, 0 not at all. */
  alpha: z.number().min(0).max(1).default(1),
  /** One decoding step of all running sequences; units are these sequences. */
  decode: Cost.prefault({}),
  /**
   * By number of devices, the seconds of a decoding step of one sequence, as measured. `decode` then says how much longer a step
   * of more is, on any number; `alpha` counts for other work alone.
   */
  tokenTime: z.record(z.string().regex(/^[1-9]\d*$/, "expected a number of devices"), z.number().positive()).optional(),
  /** Decoding steps that one prompt token counts as. */
  prefillSteps: z.number().nonnegative().default(0),
  /** Sequences decoded at once; others wait in order. */
  slots: z.int().positive().default(1024),
  /** Lengths of responses are lognormal: `spread` is the deviation of their natural logarithm. */
  response: z
    .strictObject({ medianTokens: z.number().positive(), spread: z.number().nonnegative().default(0) })
    .prefault({ medianTokens: 1 }),
  /** Scoring; units are tokens of the rectangle. */
  logprobs: Cost.prefault({}),
  /** Forward and backward; units are tokens of the rectangle. */
  training: Cost.prefault({}),
  optimStepSeconds: seconds.default(0),
  loadWeightsSeconds: seconds.default(0),
  /** To bring all of its memory back, and to give it all back. What is kept of a cache is nothing: weights and optimiser state share them by size. */
  onloadSeconds: seconds.default(0),
  offloadSeconds: seconds.default(0),
  /** Deviation of the natural logarithm of the factor, one on average, that each duration except decoding varies by. */
  durationSpread: z.number().nonnegative().default(0),
  /** What it has on each device while loaded: parameters, */
  residentBytes: z.number().nonnegative().default(0),
  /** keys and values, */
  cacheBytes: z.number().nonnegative().default(0),
  /** optimiser state and gradients, */
  optimiserBytes: z.number().nonnegative().default(0),
  /** and what stays there when it is released: contexts, buffers of collectives, fragments. */
  residualBytes: z.number().nonnegative().default(0),
  /**
   * How many times as long all that it computes takes while a component of that name computes on its devices in another run, which
   * the pool of their devices tells.
   */
  beside: z.record(z.string(), z.number().positive()).default({}),
  hostBytes: z.number().nonnegative().default(0),
  vocabSize: z.int().min(2).default(256),
  contextLength: z.int().min(2).default(32_768),
});
export type EmulatedProfile = z.infer<typeof EmulatedProfile>;

/** Throws `config.invalid` with every problem. */
export function parseProfile(profile: z.input<typeof EmulatedProfile>): EmulatedProfile {
  const parsed = EmulatedProfile.safeParse(profile);
  if (!parsed.success)
    throw new TreadleError("config.invalid", `emulated profile refused: ${z.prettifyError(parsed.error)}`);
  decodeSeconds(1, parsed.data);
  return parsed.data;
}

/** A decoding step of so many sequences. Throws `config.invalid` where `tokenTime` does not know the number of devices. */
export function decodeSeconds(running: number, profile: EmulatedProfile): number {
  const { tokenTime, decode, devices } = profile;
  if (tokenTime === undefined) return costSeconds(decode, running, profile);
  const alone = tokenTime[devices];
  if (alone === undefined)
    throw new TreadleError(
      "config.invalid",
      `emulated profile refused: 'tokenTime' has nothing for '${devices}' devices, but for ${Object.keys(tokenTime).join(", ")}; add it, or give the rank as many`,
    );
  const { baseSeconds, unitSeconds } = decode;
  return baseSeconds + unitSeconds === 0
    ? alone
    : (alone * (baseSeconds + unitSeconds * running)) / (baseSeconds + unitSeconds);
}

export function costSeconds(cost: Cost, units: number, { devices, alpha }: EmulatedProfile): number {
  return cost.baseSeconds + (cost.unitSeconds * units) / devices ** alpha;
}

/** What it releases and restores by itself; all together take the seconds of the whole. */
export function tagsOf(profile: EmulatedProfile): readonly TagMemory[] {
  const { residentBytes, cacheBytes, optimiserBytes, onloadSeconds, offloadSeconds } = profile;
  const copiedBytes = residentBytes + optimiserBytes;
  const tag = (tag: TagMemory["tag"], bytes: number, share: number): TagMemory => {
    return { tag, bytes, releaseSeconds: share * offloadSeconds, restoreSeconds: share * onloadSeconds };
  };
  const ofOptimiser = copiedBytes > 0 ? optimiserBytes / copiedBytes : 0;
  return [
    tag("weights", residentBytes, 1 - ofOptimiser),
    tag("cache", cacheBytes, 0),
    tag("optimiser", optimiserBytes, ofOptimiser),
  ];
}
