import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { readState, writeState } from "../../src/author/state-file.ts";

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "state-"));
});
afterAll(() => rm(folder, { recursive: true }));

test("what was written is read, and nothing is left beside it", async () => {
  await fc.assert(
    fc.asyncProperty(fc.uint8Array({ maxLength: 2000 }), async (state) => {
      const path = join(folder, "deep", "actor.1.state");
      await writeState(path, state);
      expect(Buffer.from(await readState(path)).equals(Buffer.from(state))).toBe(true);
      expect(await readdir(join(folder, "deep"))).toEqual(["actor.1.state"]);
    }),
    { numRuns: 30 },
  );
});

test("cut short, grown or changed anywhere, a state is checkpoint.corrupt", async () => {
  const path = join(folder, "actor.2.state");
  await writeState(path, Buffer.from("weights weights weights"));
  const whole = await readFile(path);
  const damages: Buffer[] = [Buffer.alloc(0), Buffer.concat([whole, Buffer.from("x")])];
  for (let length = 1; length < whole.length; length += 7) damages.push(whole.subarray(0, length));
  for (let at = 0; at < whole.length; at++) {
    const changed = Buffer.from(whole);
    changed[at] = (changed[at] as number) ^ 1;
    damages.push(changed);
  }
  for (const damaged of damages) {
    await writeFile(path, damaged);
    await expect(readState(path)).rejects.toMatchObject({ code: "checkpoint.corrupt", details: { path } });
  }
});

test("a state that is not there is checkpoint.missing", async () => {
  await expect(readState(join(folder, "none"))).rejects.toMatchObject({ code: "checkpoint.missing" });
});
