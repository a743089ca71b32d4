/** How long sequences are. Lengths of responses are lognormal, as those of reasoning models nearly are, and end at a bound. Pure. */
import { normalQuantile } from "../profile/longest-item.ts";

export type Lengths = {
  readonly promptTokens: number;
  /** the median */
  readonly responseTokens: number;
  /** standard deviation of the logarithm */
  readonly spread: number;
  /** none is longer */
  readonly maxResponseTokens: number;
};

const strips = 400;

function meanOf({ responseTokens, spread, maxResponseTokens }: Lengths, of: (length: number) => number): number {
  let sum = 0;
  for (let i = 0; i < strips; i++)
    sum += of(Math.min(maxResponseTokens, responseTokens * Math.exp(spread * normalQuantile((i + 0.5) / strips))));
  return sum / strips;
}

export const meanResponse = (lengths: Lengths): number => meanOf(lengths, (length) => length);

/** Of a prompt and its response, on average. */
export const sequenceTokens = (lengths: Lengths): number => lengths.promptTokens + meanResponse(lengths);

export const longestSequence = ({ promptTokens, maxResponseTokens }: Lengths): number =>
  promptTokens + maxResponseTokens;

/** Tokens before a token of a response, on average: longer responses have more of them. */
export const contextOfResponse = (lengths: Lengths): number =>
  lengths.promptTokens + meanOf(lengths, (length) => length ** 2) / (2 * meanResponse(lengths));

/** Tokens before a token of a whole sequence. */
export const contextOfSequence = (lengths: Lengths): number =>
  meanOf(lengths, (length) => (lengths.promptTokens + length) ** 2) / (2 * sequenceTokens(lengths));
