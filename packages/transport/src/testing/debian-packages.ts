import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, rename, rm } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);

/**
 * The folder into which packages of the distribution are unpacked: that needs no root, and installs nothing. Downloads them
 * where `name` is not in the cache yet; rejects when they cannot be had. `whole`: with what they depend on and this machine lacks.
 */
export async function unpackPackages(
  name: string,
  asked: readonly string[],
  { whole = false }: { readonly whole?: boolean } = {},
): Promise<string> {
  const cache = join(process.env["XDG_CACHE_HOME"] ?? join(homedir(), ".cache"), "treadle", name);
  if (existsSync(cache)) return cache;
  // Unpacked beside its place: others may look for it meanwhile.
  await mkdir(join(cache, ".."), { recursive: true });
  const beside = await mkdtemp(`${cache}-`);
  try {
    const packages = whole ? await withDependencies(asked) : asked;
    await run("apt-get", ["download", ...packages], { cwd: beside, timeout: 600_000 });
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

/** As an installation of them would bring: they themselves, and of what they depend on what is not installed. */
async function withDependencies(packages: readonly string[]): Promise<string[]> {
  const asked = ["install", "--simulate", "--no-install-recommends", "-o", "Debug::NoLocking=1", ...packages];
  const { stdout } = await run("apt-get", asked, { timeout: 60_000, env: { ...process.env, LC_ALL: "C" } });
  const brought = [...stdout.matchAll(/^Inst (\S+)/gm)].map(([, name]) => name as string);
  return [...new Set([...packages, ...brought])];
}
