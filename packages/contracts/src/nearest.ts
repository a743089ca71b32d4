import { distance } from "fastest-levenshtein";

/** The known name that a mistyped one is most likely meant to be, for messages; undefined when none is near. */
export function nearestOf(name: string, known: readonly string[]): string | undefined {
  const ranked = known.map((each) => ({ each, far: distance(name, each) })).sort((a, b) => a.far - b.far);
  const best = ranked[0];
  return best && best.far <= Math.max(2, Math.ceil(name.length / 3)) ? best.each : undefined;
}
