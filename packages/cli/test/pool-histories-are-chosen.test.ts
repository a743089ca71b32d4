/** `treadle trace --pool` draws what a pool has left, whatever else lies beside it. */
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { PoolEntry } from "@treadle/contracts";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { traceCommand } from "../src/commands/trace.ts";

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "treadle-trace-pool-"));
  vi.spyOn(process.stdout, "write").mockImplementation(() => true);
});
afterEach(() => {
  vi.restoreAllMocks();
  rmSync(folder, { recursive: true, force: true });
});

const draw = (...words: string[]) =>
  traceCommand()
    .exitOverride()
    .parseAsync(["--runs", folder, "--pool", ...words], { from: "user" });

test("a history of which only the old half is left is drawn, beside what is no history", async () => {
  const entries: PoolEntry[] = [
    { type: "holds", atMs: 1000, run: "one", token: 1, devices: ["gpu:0"] },
    { type: "released", atMs: 2000, token: 1 },
  ];
  writeFileSync(join(folder, "pool-x.old.jsonl"), entries.map((entry) => `${JSON.stringify(entry)}\n`).join(""));
  mkdirSync(join(folder, "pool-y.jsonl"));
  symlinkSync(join(folder, "nowhere"), join(folder, "pool-z.jsonl"));
  expect(spawnSync("mkfifo", [join(folder, "pool-x.jsonl"), join(folder, "pool-w.jsonl")]).status).toBe(0);
  await draw();
  expect(readFileSync(join(folder, "pool-x.html"), "utf8")).toContain("gpu:0");
  for (const name of ["pool-w", "pool-y", "pool-z"])
    await expect(draw(name)).rejects.toMatchObject({
      code: "run.not-found",
      message: `no history '${name}' in '${folder}'; the newest is 'pool-x'`,
    });
});

test("where nothing is a history, it says who leaves one", async () => {
  mkdirSync(join(folder, "pool-y.jsonl"));
  await expect(draw()).rejects.toThrow(/no pool has left a history in '.*'; 'treadle multiplex' and/);
  await expect(draw("pool-y")).rejects.toThrow(/no pool has left a history/);
});
