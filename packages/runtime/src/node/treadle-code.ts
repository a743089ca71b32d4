/** Which Treadle this process, and each worker that it starts, runs: version, form, and where its packages lie. */
import { existsSync, readFileSync, realpathSync } from "node:fs";
import { dirname, join } from "node:path";
import { packageFolder } from "@treadle/contracts/package-folder";

/** Of a checkout's sources only when told so. */
export const isCompiled = process.env.TREADLE_COMPILED === "1" || !import.meta.url.endsWith(".ts");

/**
 * The sources and what was built of them are told apart, whatever their version: a build may be older than the sources
 * beside it.
 */
export type TreadleForm = "sources" | "compiled";

export type CodeVersions = { readonly node: string; readonly treadle: string; readonly form: TreadleForm };

type Manifest = { readonly version?: string; readonly dependencies?: Readonly<Record<string, string>> };
const readManifest = (folder: string): Manifest => JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));

const ownFolder = realpathSync(packageFolder(import.meta.url));

export const codeVersions: CodeVersions = {
  node: process.version,
  treadle: readManifest(ownFolder).version ?? "",
  form: isCompiled ? "compiled" : "sources",
};

let found: ReadonlyMap<string, string> | undefined;

/** The packages of Treadle that a worker process begins with, by name: real folders, wherever they are installed. */
export function treadlePackages(): ReadonlyMap<string, string> {
  found ??= findPackages();
  return found;
}

function findPackages(): ReadonlyMap<string, string> {
  const packages = new Map([["@treadle/runtime", ownFolder]]);
  for (const folder of packages.values()) {
    for (const name of Object.keys(readManifest(folder).dependencies ?? {})) {
      if (!name.startsWith("@treadle/") || packages.has(name)) continue;
      const installed = installedFrom(folder, name);
      if (installed !== undefined) packages.set(name, installed);
    }
  }
  return packages;
}

/** As Node looks for a package: upwards. */
function installedFrom(from: string, name: string): string | undefined {
  for (let folder = from; ; folder = dirname(folder)) {
    const candidate = join(folder, "node_modules", name);
    if (existsSync(candidate)) return realpathSync(candidate);
    if (dirname(folder) === folder) return undefined;
  }
}
