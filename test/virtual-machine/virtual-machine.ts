/**
 * A machine of a test's own, emulated by QEMU, with the control groups of version 2 that most of today's Linux systems have.
 * It sees this machine's files, and what it writes is gone with it. Debian's kernel and QEMU are unpacked into the cache
 * folder: nothing is installed.
 */
import { execFile, spawn } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { cp, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { text } from "node:stream/consumers";
import { promisify } from "node:util";
import { unpackPackages } from "../../packages/transport/src/testing/debian-packages.ts";
import { askedScript, firstScript, initScript, systemdScript } from "./scripts.ts";

export type MachineOptions = {
  /** after which it is switched off */
  readonly limitMs: number;
  readonly environment?: Readonly<Record<string, string>>;
  /** Begin with this system's systemd, which starts the command; otherwise it begins in a group as of a service. */
  readonly systemd?: boolean;
  /** given what the machine prints, as it comes */
  readonly onOutput?: (text: string) => void;
};

const run = promisify(execFile);
const memoryMiB = 2048;
const drivers = ["virtio_pci", "9pnet_virtio", "9p", "overlay", "loop", "crc32c_generic", "ext4"];

/** Why there is no such machine here; undefined when there is one. */
export async function machineLacks(): Promise<string | undefined> {
  if (process.platform !== "linux" || process.arch !== "x64") return "its kernel is for Linux on x64";
  // It would not be root there, either, for files that only root may read.
  if (process.getuid?.() !== 0) return "it needs root, to read all of this system's files";
  try {
    await programs();
    return undefined;
  } catch (error) {
    return `QEMU or its kernel cannot be had: ${(error as Error).message.split("\n")[0]}`;
  }
}

export const hasSystemd = (): boolean => existsSync("/lib/systemd/systemd");

/** Runs a command in `folder`. Resolves with its exit code and all that was printed; rejects when the machine ends before it. */
export async function runInMachine(
  words: readonly string[],
  folder: string,
  { limitMs, environment = {}, systemd = false, onOutput = () => {} }: MachineOptions,
): Promise<{ readonly exitCode: number; readonly output: string }> {
  const unpacked = await programs();
  const kernel = kernelOf(unpacked);
  const own = await mkdtemp(join(tmpdir(), "treadle-machine-"));
  const { PATH = "", HOME = "/root" } = process.env;
  try {
    const archive = await firstFiles(own, unpacked, {
      first: systemd ? systemdScript : firstScript,
      asked: askedScript(words, folder, { PATH, HOME, ...environment }),
    });
    const share = join(unpacked, "usr/share");
    const libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map((path) => join(unpacked, path));
    const machine = spawn(
      join(unpacked, "usr/bin/qemu-system-x86_64"),
      [
        ...["-L", join(share, "qemu"), "-L", join(share, "seabios"), "-machine", "q35", "-cpu", "max", "-smp", "2"],
        ...[...accelerators(), "-m", String(memoryMiB), "-nodefaults", "-no-reboot"],
        ...["-display", "none", "-serial", "stdio", "-kernel", join(unpacked, "boot", `vmlinuz-${kernel}`)],
        ...["-initrd", archive, "-append", "console=ttyS0 quiet panic=-1 loglevel=3"],
        ...["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"],
        ...["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"],
      ],
      {
        stdio: ["ignore", "pipe", "pipe"],
        env: { ...process.env, LD_LIBRARY_PATH: libraries.join(":") },
        timeout: limitMs,
        killSignal: "SIGKILL",
      },
    );
    const kill = (): void => void machine.kill("SIGKILL");
    process.once("exit", kill);
    machine.stdout.setEncoding("utf8").on("data", onOutput);
    const failed = new Promise<never>((_, reject) => machine.once("error", reject));
    const [printed, complaints] = await Promise.race([
      Promise.all([text(machine.stdout), text(machine.stderr)]),
      failed,
    ]);
    process.off("exit", kill);
    const output = printed.replaceAll("\r", "");
    const [, exitCode] = /^treadle-machine: exit (\d+)$/m.exec(output) ?? [];
    if (exitCode === undefined)
      throw new Error(`the machine ended before the command, or ran for ${limitMs} ms:\n${output}\n${complaints}`);
    return { exitCode: Number(exitCode), output };
  } finally {
    await rm(own, { recursive: true, force: true });
  }
}

function programs(): Promise<string> {
  return unpackPackages("virtual-machine", ["qemu-system-x86", "linux-image-amd64", "busybox-static"], { whole: true });
}

/** The first that works. Some machines have KVM's device and not the processor for it, and hang. */
function accelerators(): string[] {
  const isVirtual = /^flags\s*:.*\b(vmx|svm)\b/m.test(readFileSync("/proc/cpuinfo", "utf8"));
  const emulated = ["-accel", "tcg,thread=multi"];
  return isVirtual && existsSync("/dev/kvm") ? ["-accel", "kvm", ...emulated] : emulated;
}

const kernelOf = (unpacked: string): string => readdirSync(join(unpacked, "lib/modules"))[0]!;

/** The files with which the kernel begins, in one as it wants them. */
async function firstFiles(
  own: string,
  unpacked: string,
  scripts: { readonly first: string; readonly asked: string },
): Promise<string> {
  const root = join(own, "files");
  const folders = ["bin", "drivers", "proc", "host", "written", "root"];
  await Promise.all(folders.map((folder) => mkdir(join(root, folder), { recursive: true })));
  const busybox = join(unpacked, "bin/busybox");
  await cp(busybox, join(root, "bin/busybox"));
  const files = inOrder(join(unpacked, "lib/modules", kernelOf(unpacked)), drivers);
  for (const file of files) await cp(file, join(root, "drivers", basename(file)));
  await writeFile(join(root, "init"), initScript(files.map((file) => basename(file))), { mode: 0o755 });
  for (const [name, script] of Object.entries(scripts)) await writeFile(join(root, name), script);
  const archive = join(own, "files.cpio");
  await run("sh", ["-c", 'find . | "$0" cpio -o -H newc > "$1"', busybox, archive], { cwd: root });
  return archive;
}

/** Each driver after those that it needs, which its file names. */
function inOrder(folder: string, names: readonly string[]): string[] {
  const files = new Map<string, string>();
  for (const { name, parentPath } of readdirSync(folder, { recursive: true, withFileTypes: true }))
    if (name.endsWith(".ko")) files.set(name.slice(0, -".ko".length).replaceAll("-", "_"), join(parentPath, name));
  const ordered = new Set<string>();
  const add = (name: string): void => {
    const file = files.get(name);
    if (file === undefined) throw new Error(`the kernel of '${folder}' has no driver '${name}'`);
    const [, needs = ""] = /\0depends=([^\0]*)\0/.exec(readFileSync(file, "latin1")) ?? [];
    for (const needed of needs.split(",").filter(Boolean)) add(needed.replaceAll("-", "_"));
    ordered.add(file);
  };
  for (const name of names) add(name);
  return [...ordered];
}
