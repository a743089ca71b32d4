/**
 * The files of the page: its modules, and those of the libraries that it uses, from node_modules. What is served is a list
 * that is made once; no path of a request ever becomes a path of the disk.
 */
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { readdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, extname, join } from "node:path";
import { fileURLToPath } from "node:url";

export type Asset = { readonly body: string; readonly contentType: string; readonly tag: string };

export type Assets = {
  /** by path */
  readonly files: ReadonlyMap<string, Asset>;
  readonly shell: string;
  /** what a policy names to allow the one inline script there is, which says where modules are */
  readonly importMapHash: string;
};

const ownFolder = fileURLToPath(new URL("..", import.meta.url));
const isSource = import.meta.url.endsWith(".ts");
const moduleExtension = isSource ? ".ts" : ".js";

/** What the page imports by name. */
const libraries: readonly { name: string; file: string; url: string; specifier?: string }[] = [
  { name: "uplot", file: "dist/uPlot.esm.js", url: "/vendor/uplot.js", specifier: "uplot" },
  { name: "uplot", file: "dist/uPlot.min.css", url: "/vendor/uplot.css" },
  { name: "lit-html", file: "lit-html.js", url: "/vendor/lit-html/lit-html.js", specifier: "lit-html" },
  { name: "lit-html", file: "directive.js", url: "/vendor/lit-html/directive.js", specifier: "lit-html/directive.js" },
];

const contentTypes: Readonly<Record<string, string>> = {
  ".js": "text/javascript; charset=utf-8",
  ".ts": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml",
};

export async function readAssets(): Promise<Assets> {
  const files = new Map<string, Asset>();
  const add = (url: string, body: string): void => {
    const contentType = contentTypes[extname(url)] ?? "text/plain; charset=utf-8";
    files.set(url, { body, contentType, tag: `"${sha256(body).slice(0, 22)}"` });
  };
  for (const folder of ["page", "view"]) {
    for (const name of await readdir(join(ownFolder, folder))) {
      if (extname(name) === moduleExtension && !name.endsWith(".d.ts")) {
        add(`/assets/${folder}/${name}`, await moduleText(join(ownFolder, folder, name)));
      }
    }
  }
  for (const { name, file, url } of libraries) {
    add(
      url,
      (await readFile(join(packageFolder(name), file), "utf8")).replace(/\n\/\/# sourceMappingURL=.*\s*$/, "\n"),
    );
  }
  const { styleSheet } = await import("../view/style.ts");
  add("/assets/style.css", styleSheet);
  add("/assets/icon.svg", icon);
  const imports = Object.fromEntries(libraries.flatMap(({ specifier, url }) => (specifier ? [[specifier, url]] : [])));
  const importMap = JSON.stringify({ imports });
  const modules = importedBy(`/assets/page/main${moduleExtension}`, files, imports);
  return { files, shell: shellOf(importMap, modules), importMapHash: `'sha256-${sha256(importMap)}'` };
}

/** The paths of a module and of all that it imports. */
function importedBy(entry: string, files: Assets["files"], names: Readonly<Record<string, string>>): string[] {
  const found = new Set([entry]);
  for (const path of found)
    for (const [, name = ""] of files.get(path)?.body.matchAll(/(?:\bfrom|\bimport)\s*"([^"]+)"/g) ?? []) {
      const imported = names[name] ?? new URL(name, `http://page${path}`).pathname;
      if (files.has(imported)) found.add(imported);
    }
  return [...found];
}

const sha256 = (text: string): string => createHash("sha256").update(text).digest("base64");

/** A checkout has no build: types are taken out as the file is read. */
async function moduleText(path: string): Promise<string> {
  const text = await readFile(path, "utf8");
  if (!isSource) return text.replace(/\n\/\/# sourceMappingURL=.*\s*$/, "\n");
  const { transform } = await import("esbuild");
  const { code } = await transform(text, { loader: "ts", target: "es2022", format: "esm" });
  return code;
}

/** Where a package is, whatever its `exports` let others see. */
function packageFolder(name: string): string {
  const entry = createRequire(import.meta.url).resolve(name);
  for (let folder = dirname(entry); folder !== dirname(folder); folder = dirname(folder)) {
    if (existsSync(join(folder, "package.json")) && folder.endsWith(name)) return folder;
  }
  return dirname(entry);
}

const icon = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#2f6fd0"/><path d="M6 10h20M6 16h13M6 22h17" stroke="#fff" stroke-width="3.4" stroke-linecap="round"/></svg>`;

/** All modules are asked for at once: one that names the next would else cost a round trip for each. */
const shellOf = (importMap: string, modules: readonly string[]): string => `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Treadle</title>
<link rel="icon" href="/assets/icon.svg">
<link rel="stylesheet" href="/vendor/uplot.css">
<link rel="stylesheet" href="/assets/style.css">
<script type="importmap">${importMap}</script>
${modules.map((url) => `<link rel="modulepreload" href="${url}">`).join("\n")}
<script type="module" src="/assets/page/main${moduleExtension}"></script>
</head>
<body><div id="app"><p class="empty">loading</p></div><noscript><p class="empty">This page draws with JavaScript.</p></noscript></body>
</html>
`;
