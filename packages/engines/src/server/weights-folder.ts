import { createHash } from "node:crypto";
import { lstat, mkdir, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { TreadleError } from "@treadle/contracts";

/**
 * A folder for the weights of one server, which only this user may enter. A predecessor that was killed has left its own
 * there, under the same name: it goes.
 */
export async function makeWeightsFolder(weightsFolder: string | undefined, url: string): Promise<string> {
  const name = createHash("sha256").update(url).digest("hex").slice(0, 16);
  const folder = join(resolve(weightsFolder ?? tmpdir()), `treadle-weights-${name}`);
  try {
    await mkdir(folder, { recursive: true, mode: 0o700 });
    const found = await lstat(folder);
    if (!found.isDirectory() || found.uid !== process.getuid?.())
      throw new TreadleError(
        "config.invalid",
        `'${folder}', where weights are to be written, is another user's; set engine.weightsFolder to a folder of yours`,
      );
    for (const entry of await readdir(folder)) await rm(join(folder, entry), { recursive: true, force: true });
    return folder;
  } catch (error) {
    throw diskError(error, folder);
  }
}

/** What a failure to write there is told as. */
export function diskError(error: unknown, folder: string): unknown {
  if (error instanceof TreadleError) return error;
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  if (code === "ENOSPC")
    return new TreadleError(
      "disk.full",
      `no space is left for weights in '${folder}'; free some, or set engine.weightsFolder`,
      {
        cause: error,
      },
    );
  return new TreadleError(
    "config.invalid",
    `weights cannot be written to '${folder}': ${error instanceof Error ? error.message : String(error)}; set engine.weightsFolder to a folder that can be written`,
    { cause: error },
  );
}
