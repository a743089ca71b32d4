/** What a package manager has installed, by the lock file that it leaves beside the packages. Pure. */
import { basename, dirname } from "node:path/posix";

/**
 * Path and version of each package, as far as machines must agree on them: not what is for one processor or system alone.
 * npm's file is read package by package, so that a difference can be named; of the others the file itself counts, but of
 * yarn 1's, which also names the machine, the packages in it. Where there is no such file, as Bun leaves none, each package's
 * manifest is one. `folder`: that paths in the file count from.
 */
export function installedPackages(path: string, folder: string, text: string): (readonly [string, string])[] {
  const name = basename(path);
  if (![".package-lock.json", ".yarn-integrity", "package.json"].includes(name)) return [[path, text]];
  const lock = parsed(text);
  if (lock === undefined) return [[path, text]];
  if (name === "package.json") return isForSome(lock) ? [] : [[dirname(path), `${(lock as Entry).version}`]];
  if (name === ".yarn-integrity") return [[path, JSON.stringify(lock["lockfileEntries"] ?? text)]];
  const packages = Object.entries((lock["packages"] ?? {}) as Readonly<Record<string, Entry>>);
  return packages.flatMap(([at, { version, integrity, resolved, link, os, cpu, libc }]) => {
    // Linked ones are folders, whose files count.
    if (!at.includes("node_modules/") || link === true || isForSome({ os, cpu, libc })) return [];
    return [[folder === "" ? at : `${folder}/${at}`, `${version} ${integrity ?? resolved ?? ""}`] as const];
  });
}

/** For one processor or system alone. */
const isForSome = ({ os, cpu, libc }: Pick<Entry, "os" | "cpu" | "libc">): boolean =>
  [os, cpu, libc].some((of) => of !== undefined);

type Entry = {
  readonly version?: string;
  readonly integrity?: string;
  readonly resolved?: string;
  readonly link?: boolean;
  readonly os?: unknown;
  readonly cpu?: unknown;
  readonly libc?: unknown;
};

function parsed(text: string): Readonly<Record<string, unknown>> | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}
