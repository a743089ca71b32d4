import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

const conditions = ["source", "node", "import", "default"];

/** For tests within an emulated machine: nothing is fetched there, and everything takes ten times as long. */
export default defineConfig({
  root: fileURLToPath(new URL("../..", import.meta.url)),
  ssr: { resolve: { conditions } },
  resolve: { conditions },
  test: {
    include: ["packages/*/test/**/*.test.ts", "test/virtual-machine/*.inside.ts"],
    setupFiles: fileURLToPath(new URL("../support/seed.ts", import.meta.url)),
    env: { NO_COLOR: "1", TREADLE_SEED: process.env["TREADLE_SEED"] ?? "1" },
    testTimeout: 600_000,
    hookTimeout: 600_000,
    maxWorkers: 1,
  },
});
