import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";
import { LongestFirst } from "./support/longest-first.ts";

/** Those of Node itself, so that tests load what users load; and this repository's sources. */
const conditions = ["source", "node", "import", "default"];

/** These need no program that is made for tests. */
const withPython = "reference-loss-agrees-*|models-are-counted|tokenizer-folder|completions-survive-*";
const shared = [
  ...[
    "contracts",
    "core",
    "learning",
    "multiplexer",
    "observe",
    "planner",
    "simulation",
    "trajectories",
    "workers",
  ].map((name) => `packages/${name}/test`),
  "packages/runtime/test/author",
].map((folder) => `${folder}/**/!(${withPython}).test.ts`);

const programs = ["sandbox-programs", "chromium", "torch-environment"];
const globalSetup = programs.map((name) => fileURLToPath(new URL(`support/${name}.ts`, import.meta.url)));

const { TREADLE_SEED: asked = "1" } = process.env;
const seed = asked === "random" ? Math.floor(Math.random() * 2 ** 31) : Number(asked);

export default defineConfig({
  root: fileURLToPath(new URL("..", import.meta.url)),
  ssr: { resolve: { conditions } },
  resolve: { conditions },
  test: {
    projects: [
      { extends: true, test: { name: "shared", include: shared, isolate: false } },
      {
        extends: true,
        test: {
          name: "apart",
          include: ["packages/*/test/**/*.test.ts", "test/**/*.test.ts", "workflows/*/*.test.ts"],
          exclude: shared,
          globalSetup,
        },
      },
    ],
    sequence: { sequencer: LongestFirst },
    setupFiles: fileURLToPath(new URL("support/seed.ts", import.meta.url)),
    // What tests draw is the same for everybody, unless a seed is given: a failure can be had again.
    // What tests read of commands is the same on every machine: many a CI sets variables that turn colours on.
    env: { NO_COLOR: "1", TREADLE_SEED: String(seed) },
    testTimeout: 180_000,
    hookTimeout: 180_000,
    // More than cores: tests of faults mostly wait.
    maxWorkers: 4,
    reporters: ["default", fileURLToPath(new URL("support/closing-line.ts", import.meta.url))],
  },
});
