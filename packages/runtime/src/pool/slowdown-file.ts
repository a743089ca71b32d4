/** What pools of a project have measured of works beside each other, in one file below its root, as profiles are. */
import { mkdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { KnownSlowdowns, TreadleError } from "@treadle/contracts";
import writeFileAtomic from "write-file-atomic";
import { z } from "zod";

/** Works have their hardware's key in their names, so that what was measured on one machine says nothing on another. */
export const slowdownPath = (projectRoot: string): string => join(projectRoot, ".treadle", "slowdowns.json");

/** Nobody is that much faster beside another one. A pair is said to be where a component was not warm yet when it was alone. */
const leastFactor = 0.5;

/**
 * Undefined where there is none. Pairs that cannot be so are left out, said once, and are measured again. Throws `profile.invalid`
 * for a file that is none.
 */
export function readSlowdowns(path: string, onNotice: (text: string) => void): KnownSlowdowns | undefined {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw invalid(path, (error as Error).message, error);
  }
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw invalid(path, "it is no JSON", cause);
  }
  const parsed = KnownSlowdowns.safeParse(json);
  if (!parsed.success) throw invalid(path, z.prettifyError(parsed.error), parsed.error);
  const wrong = parsed.data.pairs.filter((pair) => !isPossible(pair));
  const [first] = wrong;
  if (first !== undefined) {
    const { work, beside, told } = first;
    const those = `${wrong.length} measured ${wrong.length === 1 ? "slowdown" : "slowdowns"}`;
    const why = `'${work}' beside '${beside}' took '${told.ms}' ms where at least half of the '${told.expected}' ms alone was expected`;
    onNotice(`'${path}' has ${those} that cannot be so: ${why}; left out, and measured again`);
  }
  return { ...parsed.data, pairs: parsed.data.pairs.filter(isPossible) };
}

/** What has no samples yet says nothing. */
const isPossible = ({ told: { count, expected, ms } }: KnownSlowdowns["pairs"][number]): boolean =>
  count === 0 || (expected > 0 && ms >= leastFactor * expected);

export async function writeSlowdowns(path: string, known: KnownSlowdowns): Promise<void> {
  mkdirSync(dirname(path), { recursive: true });
  await writeFileAtomic(path, `${JSON.stringify(known)}\n`);
}

function invalid(path: string, why: string, cause: unknown): TreadleError {
  const message = `'${path}' has no measured slowdowns: ${why}; remove it, and they are measured again`;
  return new TreadleError("profile.invalid", message, { cause });
}
