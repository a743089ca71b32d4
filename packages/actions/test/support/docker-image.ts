/**
 * The root file system of the tests' image, made once in the cache folder, without a registry: busybox, and bash and Python of
 * Debian's packages. Elsewhere than on Debian 12 it has busybox alone, and what needs Python says why it is skipped.
 */
import { execFile } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, symlinkSync } from "node:fs";
import { cp, mkdtemp, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { unpackPackages } from "@treadle/transport/testing";

const run = promisify(execFile);

/** Beyond the smallest part of Python: what its ctypes, its archives and its XML are linked to. */
const packages = [
  ...["libc6", "bash", "libtinfo6", "python3-minimal", "python3.11-minimal", "libpython3.11-minimal"],
  ...["libpython3.11-stdlib", "libffi8", "zlib1g", "libexpat1", "libbz2-1.0", "liblzma5"],
];

export type TestImage = {
  /** as `docker import` takes it */
  readonly archive: string;
  readonly lacksPython: string | undefined;
};

export async function prepareImage(busybox: string): Promise<TestImage> {
  let unpacked: string;
  let lacksPython: string | undefined;
  try {
    unpacked = await unpackPackages("docker-image", packages);
  } catch (error) {
    lacksPython = `the image has no Python 3.11 of Debian's packages: ${(error as Error).message.split("\n")[0]}`;
    unpacked = await unpackPackages("docker-image-small", ["busybox-static"]);
  }
  const archive = join(unpacked, "image.tar");
  if (!existsSync(archive)) await makeArchive(unpacked, busybox, archive);
  return { archive, lacksPython };
}

async function makeArchive(unpacked: string, busybox: string, archive: string): Promise<void> {
  const beside = await mkdtemp(join(unpacked, "made-"));
  const root = join(beside, "root");
  try {
    for (const name of ["bin", "usr/bin", "etc", "tmp", "work"]) mkdirSync(join(root, name), { recursive: true });
    chmodSync(join(root, "tmp"), 0o1777);
    for (const name of ["bin", "lib", "lib64", "usr/bin", "usr/lib"])
      if (existsSync(join(unpacked, name)))
        await cp(join(unpacked, name), join(root, name), { recursive: true, verbatimSymlinks: true });
    await cp(busybox, join(root, "bin/busybox"));
    const { stdout } = await run(busybox, ["--list"]);
    for (const name of stdout.split("\n").filter((one) => one !== "" && one !== "busybox"))
      if (!["bin", "usr/bin"].some((folder) => existsSync(join(root, folder, name))))
        symlinkSync("busybox", join(root, "bin", name));
    await writeFile(join(root, "etc/passwd"), "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n");
    await writeFile(join(root, "etc/group"), "root:x:0:\nnogroup:x:65534:\n");
    // No user of a container may write what Python compiles: it would be compiled again by every command.
    const python = "/usr/bin/python3";
    if (existsSync(join(root, python)))
      await run("chroot", [
        root,
        python,
        "-m",
        "compileall",
        "-q",
        "--invalidation-mode",
        "unchecked-hash",
        "/usr/lib",
      ]);
    const made = join(beside, "image.tar");
    const same = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"];
    await run("tar", [...same, "--exclude=gconv", "-C", root, "-cf", made, "."]);
    await rename(made, archive);
  } finally {
    await rm(beside, { recursive: true, force: true });
  }
}
