/** What a sandbox of `CgroupDriver` sees of files, as arguments of bubblewrap. */
import { existsSync } from "node:fs";
import { dirname, join } from "node:path";

export type Mounts = {
  /** with its /work, and what it has of /etc for itself */
  readonly own: string;
  /** becomes the root of commands, read-only; the system's folders when absent */
  readonly rootFolder?: string | undefined;
  /** by where they are seen, read-only */
  readonly folders?: Readonly<Record<string, string>> | undefined;
  /** of which files in memory are a part */
  readonly memoryBytes?: number | undefined;
  /** of this machine, with how it finds names */
  readonly sharesNetwork: boolean;
};

const systemFolders = [
  "/usr",
  "/bin",
  "/sbin",
  "/lib",
  "/lib32",
  "/lib64",
  "/etc/alternatives",
  "/etc/ld.so.cache",
  "/etc/ssl",
];
const networkFiles = ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"];

/** `inner`: the folder that is the root of commands. */
export function mountsOf(
  inner: string,
  { own, rootFolder, folders = {}, memoryBytes, sharesNetwork }: Mounts,
): readonly string[] {
  const bind = (folder: string, seen: string): string[] => ["--ro-bind", folder, seen];
  const present = systemFolders.filter((path) => existsSync(path));
  // The folder of a mount, where bubblewrap makes it, is open to root alone.
  const open = (folder: string): string[] => ["--perms", "0755", "--dir", inner + folder];
  const ofNetwork = networkFiles.filter((path) => sharesNetwork && existsSync(path));
  const root =
    rootFolder === undefined
      ? [...open(""), ...open("/etc"), ...[...present, ...ofNetwork].flatMap((path) => bind(path, inner + path))]
      : bind(rootFolder, inner);
  const users = ["passwd", "group"]
    .filter((file) => rootFolder === undefined || existsSync(join(rootFolder, "etc", file)))
    .flatMap((file) => bind(join(own, file), `${inner}/etc/${file}`));
  const given = Object.entries(folders).flatMap(([seen, folder]) => [
    // In a root of its own a folder has its place already.
    ...(rootFolder === undefined ? foldersAbove(seen).flatMap(open) : []),
    ...bind(folder, inner + seen),
  ]);
  // Their files are of the sandbox's memory: beyond this, a process would be ended for what another wrote.
  const scratch = (share: number, folder: string): string[] => [
    ...(memoryBytes === undefined ? [] : ["--size", String(Math.max(4096, Math.floor(memoryBytes * share)))]),
    ...["--perms", "1777", "--tmpfs", inner + folder],
  ];
  return [
    // What holds the sandbox has programs of its own; perl reads no script without /dev/null.
    ...present.filter((path) => !path.startsWith("/etc")).flatMap((path) => bind(path, path)),
    ...["--dev-bind", "/dev/null", "/dev/null"],
    ...[...root, ...users, ...given, "--dev", `${inner}/dev`],
    // Semaphores of parallel test runners live here.
    ...scratch(0.25, "/dev/shm"),
    ...["--proc", `${inner}/proc`],
    ...scratch(0.5, "/tmp"),
    ...["--bind", join(own, "work"), `${inner}/work`],
  ];
}

function foldersAbove(path: string): string[] {
  const above = dirname(path);
  return above === "/" ? [] : [...foldersAbove(above), above];
}
