/** What pools of a project have measured of works beside each other, in one file below its root, as profiles are. */
import { mkdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { KnownSlowdowns, TreadleError } from "@treadle/contracts";
import writeFileAtomic from "write-file-atomic";
import { z } from "zod";

/** Works have their hardware's key in their names, so that what was measured on one machine says nothing on another. */
export const slowdownPath = (projectRoot: string): string => join(projectRoot, ".treadle", "slowdowns.json");

/** Undefined where there is none. Throws `profile.invalid` for a file that is none. */
export function readSlowdowns(path: string): KnownSlowdowns | undefined {
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
  return parsed.data;
}

export async function writeSlowdowns(path: string, known: KnownSlowdowns): Promise<void> {
  mkdirSync(dirname(path), { recursive: true });
  await writeFileAtomic(path, `${JSON.stringify(known)}\n`);
}

function invalid(path: string, why: string, cause: unknown): TreadleError {
  const message = `'${path}' has no measured slowdowns: ${why}; remove it, and they are measured again`;
  return new TreadleError("profile.invalid", message, { cause });
}
