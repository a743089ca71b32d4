/** Numbers that are given as options; commander hands them over as text. */
import { TreadleError } from "@treadle/contracts";

type Limits = { readonly least?: number; readonly most?: number };

/** Throws `problem.invalid`, naming the option as it is typed, as `--steps`, the text, and what was allowed. */
export function wholeNumber(flag: string, text: string, { least = 0, most }: Limits = {}): number {
  const value = numberIn(text);
  if (Number.isSafeInteger(value) && value >= least && value <= (most ?? value)) return value;
  const allowed = most === undefined ? `an integer of at least ${least}` : `an integer from ${least} to ${most}`;
  throw refused(flag, text, allowed);
}

/** The same of a number that need not be whole; `above` is not allowed itself. */
export function realNumber(
  flag: string,
  text: string,
  limits: { readonly least: number } | { readonly above: number },
) {
  const value = numberIn(text);
  const isAllowed = "least" in limits ? value >= limits.least : value > limits.above;
  if (Number.isFinite(value) && isAllowed) return value;
  const allowed = "least" in limits ? `a number of at least ${limits.least}` : `a number above ${limits.above}`;
  throw refused(flag, text, allowed);
}

/** An empty text is no number, and not 0. */
const numberIn = (text: string): number => (text.trim() === "" ? Number.NaN : Number(text));

const refused = (flag: string, text: string, allowed: string): TreadleError =>
  new TreadleError("problem.invalid", `${flag} '${text}' is not allowed: ${allowed} is`);
