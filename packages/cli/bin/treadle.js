#!/usr/bin/env node
// A checkout runs its TypeScript sources, a published package its compiled files.
// TREADLE_COMPILED=1 runs the compiled files of a checkout, as production does. Workflows may be TypeScript either way.
import { existsSync, lstatSync, mkdirSync } from "node:fs";
import { register } from "node:module";
import { tmpdir } from "node:os";

const source = new URL("../src/main.ts", import.meta.url);
const isCheckout = existsSync(new URL("../tsconfig.build.json", import.meta.url));
if (isCheckout && process.env.TREADLE_COMPILED !== "1") {
  guardCompileCache();
  const { register: registerTypeScript } = await import("tsx/esm/api");
  registerTypeScript();
  register("./source-condition.js", import.meta.url);
  await import(source.href);
} else {
  await import("../dist/main.js");
}

// As packages/runtime/src/author/compile-cache.ts, which nothing can load yet. Processes that this one starts inherit it.
function guardCompileCache() {
  const user = process.geteuid?.();
  const folder = `${tmpdir()}/tsx-${user}`;
  try {
    mkdirSync(folder, { mode: 0o700 });
  } catch {}
  try {
    const found = lstatSync(folder);
    if (found.isDirectory() && found.uid === user && (found.mode & 0o022) === 0) return;
  } catch {}
  process.env.TSX_DISABLE_CACHE = "1";
}
