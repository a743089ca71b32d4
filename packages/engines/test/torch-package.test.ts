/** The Python package's own tests, and its benchmark as far as a processor goes: every measurement, on tiny models. */
import { execFile } from "node:child_process";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { describe, expect, test } from "vitest";
import { z } from "zod";
import { lacksTorch, python } from "../../../test/support/torch.ts";

const reason = lacksTorch();
const folder = fileURLToPath(new URL("../../../python/treadle_torch", import.meta.url));
const run = promisify(execFile);
const Line = z.looseObject({ what: z.string().optional(), failed: z.unknown().optional() });
const limits = { bfloat16: 1e-3, float32: 1e-6 } as const;
const Mismatch = z.looseObject({ name: z.enum(["bfloat16", "float32"]), k3_mean: z.number() });

describe.skipIf(reason)(reason ?? "the Python package", () => {
  test("passes its own tests", async () => {
    const env = { ...process.env, PYTHONPATH: `${join(folder, "src")}:${join(folder, "tests")}` };
    const ran = run(python, ["-m", "unittest", "discover", "-s", join(folder, "tests")], { env });
    const { stderr } = await ran; // rejects with what it said unless all have passed
    expect(stderr).toMatch(/Ran (?:[3-9]\d|\d{3,}) tests/);
  }, 600_000);

  test("measures what its benchmark names, with sampler and trainer of one mind", async () => {
    const { stdout } = await run(python, [join(folder, "bench_gpu.py"), "--quick"], { maxBuffer: 2 ** 24 });
    const lines = stdout
      .trim()
      .split("\n")
      .map((line) => Line.parse(JSON.parse(line)));
    expect(lines.at(-1)).toMatchObject({ failed: [], summary: expect.any(Array) });
    const items = new Set(lines.flatMap(({ item }) => (item ? [item] : [])));
    expect([...items].sort()).toEqual(["a", "b", "c", "d", "e", "f", "g"]);
    const mismatches = lines
      .filter(({ what }) => what === "sampler against trainer")
      .map((line) => Mismatch.parse(line));
    expect(mismatches).toHaveLength(2);
    for (const { name, k3_mean } of mismatches) expect(k3_mean).toBeLessThan(limits[name]);
  }, 600_000);
});
