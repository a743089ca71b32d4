/**
 * `node build/emit-types.js`: the declarations of every package into its `dist`, and the modules of packages that esbuild does
 * not bundle. One program reads for all of them what a program for each would read again. It does not check: `npm run typecheck` does.
 */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, relative, resolve } from "node:path";
import ts from "typescript";

const packages = readdirSync("packages").filter((name) => ts.sys.fileExists(`packages/${name}/tsconfig.build.json`));
const isBundled = (name) =>
  /bundle-package/.test(JSON.parse(readFileSync(`packages/${name}/package.json`, "utf8")).scripts?.build ?? "");
const modules = new Set(packages.filter((name) => !isBundled(name)));

const configOf = (name) =>
  ts.getParsedCommandLineOfConfigFile(
    `packages/${name}/tsconfig.build.json`,
    {},
    { ...ts.sys, onUnRecoverableConfigFileDiagnostic: fail },
  );
const configs = packages.map((name) => [name, configOf(name)]);
const { options } = configs[0][1];
const roots = configs.flatMap(([, { fileNames }]) => fileNames);
const program = ts.createProgram(roots, {
  ...options,
  noCheck: true,
  // Packages find each other's sources, not what an earlier build left.
  customConditions: ["source"],
  rootDir: resolve("."),
  outDir: resolve("."),
});
const isOfPackage = /\/packages\/([^/]+)\/src\//;
const { diagnostics } = program.emit(undefined, (path, text) => {
  const [, name] = isOfPackage.exec(path) ?? [];
  if (!/\.d\.ts(\.map)?$/.test(path) && !modules.has(name)) return;
  const target = path.replace("/src/", "/dist/");
  mkdirSync(dirname(target), { recursive: true });
  writeFileSync(target, path.endsWith(".map") ? mapAt(target, path, text) : text);
});
if (diagnostics.length > 0) fail(...diagnostics);

/** The sources of a map, as one sees them from where it is now. */
function mapAt(target, path, text) {
  const map = JSON.parse(text);
  const sources = map.sources.map((source) => relative(dirname(target), resolve(dirname(path), source)));
  return JSON.stringify({ ...map, sources });
}

function fail(...found) {
  process.stderr.write(
    ts.formatDiagnosticsWithColorAndContext(found, {
      ...ts.sys,
      getCanonicalFileName: (name) => name,
      getNewLine: () => "\n",
    }),
  );
  process.exit(1);
}
