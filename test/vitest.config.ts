import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

/** Those of Node itself, so that tests load what users load; and this repository's sources. */
const conditions = ["source", "node", "import", "default"];

const { TREADLE_SEED: asked = "1" } = process.env;
const seed = asked === "random" ? Math.floor(Math.random() * 2 ** 31) : Number(asked);

export default defineConfig({
  root: fileURLToPath(new URL("..", import.meta.url)),
  ssr: { resolve: { conditions } },
  resolve: { conditions },
  test: {
    include: ["packages/*/test/**/*.test.ts", "test/**/*.test.ts", "workflows/*/*.test.ts"],
    globalSetup: ["sandbox-programs", "chromium", "torch-environment"].map((name) =>
      fileURLToPath(new URL(`support/${name}.ts`, import.meta.url)),
    ),
    setupFiles: fileURLToPath(new URL("support/seed.ts", import.meta.url)),
    // What tests draw is the same for everybody, unless a seed is given: a failure can be had again.
    // What tests read of commands is the same on every machine: many a CI sets variables that turn colours on.
    env: { NO_COLOR: "1", TREADLE_SEED: String(seed) },
    testTimeout: 180_000,
    hookTimeout: 180_000,
    // More than cores: tests of faults mostly wait.
    maxWorkers: 3,
    reporters: ["default", fileURLToPath(new URL("support/closing-line.ts", import.meta.url))],
  },
});
