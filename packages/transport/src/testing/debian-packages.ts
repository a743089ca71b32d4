import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, rename, rm } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);

/**
 * The folder into which packages of the distribution are unpacked: that needs no root, and installs nothing. Downloads them
 * where `name` is not in the cache yet; rejects when they cannot be had.
 */
export async function unpackPackages(name: string, packages: readonly string[]): Promise<string> {
  const cache = join(process.env["XDG_CACHE_HOME"] ?? join(homedir(), ".cache"), "treadle", name);
  if (existsSync(cache)) return cache;
  // Unpacked beside its place: others may look for it meanwhile.
  await mkdir(join(cache, ".."), { recursive: true });
  const beside = await mkdtemp(`${cache}-`);
  try {
    await run("apt-get", ["download", ...packages], { cwd: beside, timeout: 120_000 });
    const archives = (await readdir(beside)).filter((file) => file.endsWith(".deb"));
    if (archives.length < packages.length) throw new Error(`apt-get downloaded no package '${packages.join("', '")}'`);
    for (const archive of archives) {
      await run("dpkg", ["-x", join(beside, archive), beside]);
      await rm(join(beside, archive));
    }
    await rename(beside, cache).catch(() => {}); // somebody else was faster
  } finally {
    await rm(beside, { recursive: true, force: true });
  }
  return cache;
}
