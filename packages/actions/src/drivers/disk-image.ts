/** A file system of a sandbox's own, whose size is the limit of its files: in a file that takes only what is written to it. */
import { execFile, execFileSync } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import { truncate, writeFile } from "node:fs/promises";
import { promisify } from "node:util";
import { TreadleError } from "@treadle/contracts";

const run = promisify(execFile);

const loopControl = "/dev/loop-control";
/** Some shells leave out the folders in which the programs of file systems are. */
const environment = () => ({ ...process.env, PATH: `${process.env.PATH ?? ""}:/usr/sbin:/sbin` });

/** Less would hold its own tables alone. */
export const leastDiskBytes = 4 * 2 ** 20;

/** What this machine lacks for them; undefined when it lacks nothing. */
export function diskImagesLack(): string | undefined {
  try {
    execFileSync("mkfs.ext4", ["-V"], { stdio: "ignore", env: environment() });
  } catch {
    return "'mkfs.ext4' is not installed; install the package e2fsprogs";
  }
  try {
    closeSync(openSync(loopControl, "r+"));
    return undefined;
  } catch (error) {
    return `'${loopControl}' cannot be used (${(error as NodeJS.ErrnoException).code}); give this process loop devices`;
  }
}

/** Its topmost folder belongs to the user. Throws `sandbox.failed`. */
export async function makeDiskImage(file: string, bytes: number, userId: number): Promise<void> {
  try {
    await writeFile(file, "", { mode: 0o600 });
    await truncate(file, Math.max(leastDiskBytes, Math.ceil(bytes)));
    // Nothing of it outlives a crash of the machine: it needs no journal.
    const options = ["-O", "^has_journal,^resize_inode", "-b", "4096", "-m", "0"];
    const extended = `lazy_itable_init=1,nodiscard,root_owner=${userId}:${userId}`;
    await run("mkfs.ext4", ["-q", "-F", ...options, "-E", extended, file], { env: environment() });
  } catch (error) {
    const { stderr, message } = error as { stderr?: string } & Error;
    const why = stderr?.trim() || message;
    throw new TreadleError("sandbox.failed", `a file system of '${bytes}' bytes could not be made: ${why}`);
  }
}

/** Once it is mounted the file has no name: the mount alone keeps it, and whatever ends the last of its users removes it. */
const mountIt = `
mount -t ext4 -o loop,nosuid,nodev,discard,noinit_itable "$1" "$2" && rmdir "$2/lost+found" && rm "$1" || exit 125
shift 2
exec "$@"
`;

/** The command, with the file's system mounted on a folder where it alone and what it starts sees it. */
export const withDiskImage = (file: string, folder: string, command: readonly string[]): string[] => [
  ...["unshare", "--mount", "--propagation", "private", "--"],
  ...["/bin/sh", "-c", mountIt, "mount", file, folder, ...command],
];
