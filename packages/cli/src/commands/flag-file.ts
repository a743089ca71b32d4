/** Files that a flag names. */
import { readFileSync } from "node:fs";
import { TreadleError } from "@treadle/contracts";

export function readFlagFile(flag: string, path: string): Buffer {
  try {
    return readFileSync(path);
  } catch (cause) {
    throw new TreadleError("config.invalid", `--${flag} '${path}' cannot be read: ${(cause as Error).message}`, {
      cause,
    });
  }
}
