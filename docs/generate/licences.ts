import { readdirSync, readFileSync } from "node:fs";
import { z } from "zod";
import { cell, code, table } from "./table.ts";

const names = z.record(z.string(), z.unknown()).default({});
const Needs = { dependencies: names, optionalDependencies: names, peerDependencies: names };
const Manifest = z.object({ name: z.string(), private: z.boolean().default(false), ...Needs });
const Lock = z.object({
  packages: z.record(
    z.string(),
    z.object({ license: z.string().optional(), link: z.boolean().default(false), ...Needs }),
  ),
});

/** Their manifests have it in a form that the lock file leaves out. */
const saidAtLength: ReadonlyMap<string, string> = new Map([
  ["buildcheck", "MIT"],
  ["cpu-features", "MIT"],
  ["ssh2", "MIT"],
]);

const readJson = (path: string): unknown => JSON.parse(readFileSync(new URL(`../../${path}`, import.meta.url), "utf8"));

/** Licence by package, of everything that whoever installs `treadle` installs with it, for whatever platform. */
export function installedLicences(): Map<string, string> {
  const { packages } = Lock.parse(readJson("package-lock.json"));
  const licences = new Map<string, string>();
  const visited = new Set<string>();
  /** `path`: of the package that needs it, which may have a copy of its own. */
  const visit = (path: string, name: string): void => {
    const found = placeOf(packages, path, name);
    if (found === undefined || visited.has(found)) return;
    visited.add(found);
    const {
      license = saidAtLength.get(name) ?? "not said",
      link,
      ...needs
    } = packages[found] as z.infer<typeof Lock>["packages"][string];
    if (link) return; // one of ours
    licences.set(name, license);
    for (const needed of Object.keys({ ...needs.dependencies, ...needs.optionalDependencies })) visit(found, needed);
  };
  for (const folder of readdirSync(new URL("../../packages", import.meta.url))) {
    const manifest = Manifest.parse(readJson(`packages/${folder}/package.json`));
    if (manifest.private) continue;
    for (const needed of Object.keys({ ...manifest.dependencies, ...manifest.peerDependencies }))
      visit(`packages/${folder}`, needed);
  }
  return licences;
}

/** Where npm looks for it: beside what needs it, or in any node_modules above. */
function placeOf(packages: Readonly<Record<string, unknown>>, path: string, name: string): string | undefined {
  for (let folder = path; ; folder = folder.slice(0, Math.max(0, folder.lastIndexOf("/node_modules/")))) {
    const place = `${folder === "" ? "" : `${folder}/`}node_modules/${name}`;
    if (packages[place] !== undefined) return place;
    if (folder === "") return undefined;
  }
}

export function licencesPage(): string {
  const byLicence = new Map<string, string[]>();
  for (const [name, licence] of installedLicences()) byLicence.set(licence, [...(byLicence.get(licence) ?? []), name]);
  const rows = [...byLicence]
    .sort(([a, some], [b, others]) => others.length - some.length || (a < b ? -1 : 1))
    .map(([licence, list]) => [cell(licence), String(list.length), list.sort().map(code).join(", ")]);
  return [
    "# Licences",
    "",
    "Treadle is under the Apache License 2.0. With it whoever installs `treadle` installs, for one platform or another, what this",
    "table lists by its licence. A test allows no other licence than those that may be used without asking.",
    "",
    table(["licence", "packages", "which"], rows),
    "",
  ].join("\n");
}
