/**
 * `node ../../build/bundle-package.js [more entries]`, in a package's folder: what its `exports` name, and the entries given,
 * into `dist`, each with the modules that only it needs, and what they share in chunks. Other packages stay imports, so that
 * there is one copy of each. A process loads one file for what were fifty: reading and linking them was most of its start.
 */
import { existsSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { build } from "esbuild";

const { exports, name } = JSON.parse(readFileSync("package.json", "utf8"));
const exported = Object.values(exports ?? {}).flatMap(({ source }) => source ?? []);
const entryPoints = [...new Set([...exported.map((path) => path.replace(/^\.\//, "")), ...process.argv.slice(2)])];
if (entryPoints.length === 0) throw new Error(`package '${name}' exports nothing to bundle`);

const { metafile } = await build({
  entryPoints,
  bundle: true,
  splitting: true,
  packages: "external",
  platform: "node",
  format: "esm",
  target: "node20.11",
  outbase: "src",
  outdir: "dist",
  chunkNames: "shared/[name]-[hash]",
  sourcemap: true,
  sourcesContent: false,
  logLevel: "warning",
  metafile: true,
});

// Chunks are named by what is in them: those of earlier builds would stay, and be published.
const built = new Set(Object.keys(metafile.outputs));
const chunks = existsSync("dist/shared") ? readdirSync("dist/shared").map((file) => `dist/shared/${file}`) : [];
for (const path of chunks) if (!built.has(path)) rmSync(path);
