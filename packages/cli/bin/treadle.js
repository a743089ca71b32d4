#!/usr/bin/env node
// A checkout runs its TypeScript sources, a published package its compiled files.
// TREADLE_COMPILED=1 runs the compiled files of a checkout, as production does. Workflows may be TypeScript either way.
import { existsSync } from "node:fs";
import { register } from "node:module";

const source = new URL("../src/main.ts", import.meta.url);
const isCheckout = existsSync(new URL("../tsconfig.build.json", import.meta.url));
if (isCheckout && process.env.TREADLE_COMPILED !== "1") {
  const { register: registerTypeScript } = await import("tsx/esm/api");
  registerTypeScript();
  register("./source-condition.js", import.meta.url);
  await import(source.href);
} else {
  await import("../dist/main.js");
}
