/** A file system of a sandbox's own, whose size is the limit of its files: in a file that takes only what is written to it. */
import { execFile, execFileSync } from "node:child_process";
import { closeSync, mkdirSync, mkdtempSync, openSync, rmSync, statfsSync, truncateSync, writeFileSync } from "node:fs";
import { stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { TreadleError } from "@treadle/contracts";

const run = promisify(execFile);

const loopControl = "/dev/loop-control";
/** Some shells leave out the folders in which the programs of file systems are. */
const environment = () => ({ ...process.env, PATH: `${process.env.PATH ?? ""}:/usr/sbin:/sbin` });

/** linux/magic.h: tmpfs and ramfs */
const inMemory: ReadonlySet<number> = new Set([0x01021994, 0x858458f6]);

/** Less would hold its own tables alone. */
export const leastDiskBytes = 4 * 2 ** 20;
/** of ext4 with blocks of 4 KiB */
export const mostDiskBytes = 2 ** 44;

/** What this machine lacks for them, proven by one; undefined when it lacks nothing. */
export function diskImagesLack(): string | undefined {
  try {
    execFileSync("mkfs.ext4", ["-V"], { stdio: "ignore", env: environment() });
  } catch {
    return "'mkfs.ext4' is not installed; install the package e2fsprogs";
  }
  try {
    closeSync(openSync(loopControl, "r+"));
  } catch (error) {
    return `'${loopControl}' cannot be used (${(error as NodeJS.ErrnoException).code}); give this process loop devices`;
  }
  const { type } = statfsSync(tmpdir());
  if (inMemory.has(type))
    return `'${tmpdir()}', where they would be, is in memory, which no sandbox's limit counts; set TMPDIR to a folder on a disk`;
  const own = mkdtempSync(join(tmpdir(), "treadle-disk-"));
  try {
    const [file, folder] = [join(own, "file"), join(own, "folder")];
    mkdirSync(folder);
    writeFileSync(file, "");
    truncateSync(file, leastDiskBytes);
    execFileSync("mkfs.ext4", mkfsOf(file, 0), { stdio: "pipe", env: environment() });
    const [program, ...args] = withDiskImage(file, folder, ["true"]);
    execFileSync(program!, args, { stdio: "pipe", env: environment() });
    return undefined;
  } catch (error) {
    return `a file system in a file cannot be mounted: ${whyOf(error)}; give this process loop devices, and a kernel with ext4`;
  } finally {
    rmSync(own, { recursive: true, force: true });
  }
}

/** Nothing of it outlives a crash of the machine: it needs no journal. */
const mkfsOf = (file: string, userId: number): string[] => [
  ...["-q", "-F", "-O", "^has_journal,^resize_inode", "-b", "4096", "-m", "0"],
  ...["-E", `lazy_itable_init=1,nodiscard,root_owner=${userId}:${userId}`, file],
];

const whyOf = (error: unknown): string => {
  const { stderr, message } = error as { stderr?: string | Buffer } & Error;
  return String(stderr ?? "").trim() || message;
};

/** Its topmost folder belongs to the user. Throws `sandbox.failed`. */
export async function makeDiskImage(file: string, bytes: number, userId: number): Promise<void> {
  try {
    await writeFile(file, "", { mode: 0o600 });
    await truncate(file, Math.ceil(bytes));
    await run("mkfs.ext4", mkfsOf(file, userId), { env: environment() });
  } catch (error) {
    throw new TreadleError("sandbox.failed", `a file system of '${bytes}' bytes could not be made: ${whyOf(error)}`);
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

/** linux/fs.h: FS_IOC_SHUTDOWN, with FS_SHUTDOWN_FLAGS_NOLOGFLUSH. Nothing but the file system that was mounted is ever asked. */
const forgetIt = `
use Fcntl qw(:DEFAULT O_DIRECTORY O_NOFOLLOW);
sysopen(my $folder, $ARGV[0], O_RDONLY | O_DIRECTORY | O_NOFOLLOW) or exit 1;
exit 1 unless (stat $folder)[0] == $ARGV[1];
ioctl($folder, 0x8004587d, my $how = pack("L", 2)) or exit 1;
`;

/** Which device is mounted on a folder, to tell it again. */
export const deviceOf = async (folder: string): Promise<number> => (await stat(folder)).dev;

/**
 * What waits to be written to the device that is mounted on the folder is forgotten, and all use of it fails from here on. Where that
 * cannot be, it is written when the last of its users ends.
 */
export async function forgetDiskImage(folder: string, device: number): Promise<void> {
  await run("perl", ["-e", forgetIt, folder, String(device)], { env: environment(), timeout: 10_000 }).catch(() => {});
}
