/**
 * What a saved state of a component is: a folder with a manifest, and a folder for each rank that saved, with its files. The
 * manifest names all of them, with sizes and checksums, and is written last.
 */
import { z } from "zod";
import { ComponentName } from "./names.ts";

/** Of a file that a rank saves: one part of a path, so that none leaves its rank's folder. */
export const StateFileName = z
  .string()
  .regex(
    /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$/,
    "must be letters, digits, '_', '.' and '-', at most 100, and begin with no '.' or '-'",
  );

export const StateFile = z.strictObject({
  name: StateFileName,
  sizeBytes: z.int().nonnegative(),
  sha256: z.string().regex(/^[0-9a-f]{64}$/, "must be a SHA-256 in hexadecimal digits"),
});
export type StateFile = z.infer<typeof StateFile>;

export const StateManifest = z.strictObject({
  format: z.literal(1),
  component: ComponentName,
  /** the files of each rank that saved, by rank */
  ranks: z.array(z.array(StateFile)).min(1),
});
export type StateManifest = z.infer<typeof StateManifest>;

/** A state as a journal names it: its folder, relative to the run's, and the files in it. */
export const StateReference = z.strictObject({ folder: z.string(), files: z.array(z.string()) });
export type StateReference = z.infer<typeof StateReference>;
