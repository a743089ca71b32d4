import { createHash } from "node:crypto";
import { mkdir, mkdtemp, readdir, readFile, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { openSavedState, saveState } from "../../../../test/support/saved-state.ts";
import { folderSink, PartWriter, pieceBytes } from "../../src/author/state/part-writer.ts";
import { fileOf, openState } from "../../src/author/state/saved-state.ts";
import type { StateData } from "../../src/author/state/state.ts";
import { filesInCheckpoint } from "../../src/runner/run/checkpoints.ts";

let root: string;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "state-"));
});
afterAll(() => rm(root, { recursive: true }));

let num = 0;
const newFolder = () => join(root, `actor.${++num}`);

test("MF1: what ranks have written is read by each, by any way, and nothing is left beside it", async () => {
  const file = fc.tuple(fc.constantFrom("bytes", "text", "pieces"), fc.uint8Array({ maxLength: 2000 }));
  const part = fc.dictionary(fc.stringMatching(/^[a-z][a-z.]{0,5}$/), file, { maxKeys: 3 });
  await fc.assert(
    fc.asyncProperty(fc.array(part, { minLength: 1, maxLength: 3 }), async (parts) => {
      const folder = newFolder();
      const given = parts.map((files) =>
        Object.fromEntries(
          Object.entries(files).map(([name, [kind, bytes]]): [string, StateData] => {
            if (kind === "text") return [name, Buffer.from(bytes).toString("hex")];
            return [name, kind === "bytes" ? bytes : [bytes.subarray(0, 7), bytes.subarray(7)]];
          }),
        ),
      );
      await saveState(folder, "actor", given);
      expect(await readdir(root)).toEqual([`actor.${num}`]);
      for (const [rank, files] of parts.entries()) {
        const state = await openSavedState(folder, rank, parts.length);
        expect(state.names.toSorted()).toEqual(Object.keys(files).sort());
        for (const [name, [kind, bytes]] of Object.entries(files)) {
          const streamed: Uint8Array[] = [];
          for await (const piece of state.stream(name)) streamed.push(piece);
          const found = await state.bytes(name);
          expect(Buffer.concat(streamed).equals(found)).toBe(true);
          const expected = kind === "text" ? Buffer.from(Buffer.from(bytes).toString("hex")) : Buffer.from(bytes);
          expect(expected.equals(found)).toBe(true);
          if (kind === "text") expect(await state.text(name)).toBe(expected.toString());
        }
      }
      await rm(folder, { recursive: true });
    }),
    { numRuns: 30 },
  );
});

/** Two ranks, and what somebody does to their state: the refusal names the file, the rank, what was expected and found. */
const damages: readonly [string, (folder: string) => Promise<void>, object, RegExp][] = [
  [
    "a file is cut short",
    (folder) => truncate(fileOf(folder, 1, "engine"), 3),
    { file: "engine", rank: 1, expected: "'9' bytes", found: "'3'" },
    /file 'engine' of rank 1 has '3' where its manifest expects '9' bytes/,
  ],
  [
    "a file is gone",
    (folder) => rm(fileOf(folder, 0, "engine")),
    { file: "engine", rank: 0, expected: "'9' bytes", found: "no file" },
    /file 'engine' of rank 0 has no file/,
  ],
  [
    "a file is altered, its length is not",
    (folder) => writeFile(fileOf(folder, 1, "engine"), "Weights 1"),
    { file: "engine", rank: 1, found: expect.stringMatching(/^'[0-9a-f]{64}'$/) },
    /file 'engine' of rank 1 has '[0-9a-f]{64}' where its manifest expects SHA-256/,
  ],
  [
    "a file is there that the manifest does not name",
    (folder) => writeFile(fileOf(folder, 1, "other"), ""),
    { file: "other" },
    /'rank-1\/other', which its manifest does not name/,
  ],
  [
    "a rank is there that the manifest does not name",
    async (folder) => void (await mkdir(join(folder, "rank-2"))),
    { file: "rank-2" },
    /'rank-2', which its manifest does not name/,
  ],
  [
    "the manifest is gone",
    (folder) => rm(join(folder, "manifest.json")),
    { file: "manifest.json" },
    /'manifest.json' is missing/,
  ],
  [
    "the manifest says another size",
    async (folder) => {
      const path = join(folder, "manifest.json");
      await writeFile(path, (await readFile(path, "utf8")).replace('"sizeBytes": 9', '"sizeBytes": 8'));
    },
    { file: "manifest.json" },
    /'manifest.json' has checksum '[0-9a-f]+' where it says/,
  ],
];

test.each(damages)(
  "MF2: where %s, the state is checkpoint.corrupt, and no byte of it is given",
  async (_, act, details, text) => {
    const folder = newFolder();
    await saveState(folder, "actor", [{ engine: "weights 0" }, { engine: "weights 1" }]);
    await act(folder);
    const given: Uint8Array[] = [];
    const reading = async () => {
      for await (const piece of (await openSavedState(folder, 1, 2)).stream("engine")) given.push(piece);
    };
    await expect(reading()).rejects.toMatchObject({
      code: "checkpoint.corrupt",
      details: { path: expect.stringContaining(folder), ...details },
      message: expect.stringMatching(text),
    });
    expect(given).toEqual([]);
    await expect(openSavedState(folder, 1, 2).then((state) => state.bytes("engine"))).rejects.toMatchObject({
      message: expect.stringContaining("--checkpoint"),
    });
  },
);

test("cut short or changed anywhere, a manifest is checkpoint.corrupt", async () => {
  const folder = newFolder();
  await saveState(folder, "actor", [{ engine: "weights" }]);
  const path = join(folder, "manifest.json");
  const whole = await readFile(path);
  const isSpace = (at: number) => /\s/.test(String.fromCharCode(whole[at] as number));
  for (let at = 0; at < whole.length - 1; at++) {
    const changed = Buffer.from(whole);
    changed[at] = (changed[at] as number) ^ 1;
    for (const damaged of isSpace(at) ? [whole.subarray(0, at)] : [changed, whole.subarray(0, at)]) {
      await writeFile(path, damaged);
      await expect(openState(folder)).rejects.toMatchObject({ code: "checkpoint.corrupt" });
    }
  }
});

test("a state that is not there is checkpoint.missing; a single file, as before, says which version reads it", async () => {
  await expect(openState(join(root, "none"))).rejects.toMatchObject({ code: "checkpoint.missing" });
  const path = join(root, "old.state");
  await writeFile(path, "treadle-state-1 …");
  await expect(openState(path)).rejects.toMatchObject({
    code: "checkpoint.corrupt",
    message: expect.stringContaining("resume the run with the version that wrote it"),
  });
  await rm(path);
});

test("a group of another size is refused its own part, and may divide all parts anew", async () => {
  const folder = newFolder();
  await saveState(folder, "actor", [{ share: "a" }, { share: "b" }]);
  const state = await openSavedState(folder, 0, 3);
  await expect(state.text("share")).rejects.toMatchObject({
    code: "checkpoint.parts",
    message: expect.stringContaining("run the group with 2 ranks"),
    details: { expected: 3, found: 2 },
  });
  expect(state.numParts).toBe(2);
  expect(await Promise.all([0, 1].map((rank) => state.part(rank).text("share")))).toEqual(["a", "b"]);
  expect(() => state.part(2)).toThrow(/ranks 0 to 1/);
});

test("what a process that died had begun is not in the state that the next one completes", async () => {
  const folder = newFolder();
  const dead = new PartWriter(folderSink(join(`${folder}.partial`, "rank-0")));
  dead.write("engine", "half of");
  dead.write("of an earlier version", "x".repeat(100)).catch(() => {});
  await dead.finish().catch(() => {});
  await saveState(folder, "actor", [{ engine: "whole" }]);
  expect(await (await openSavedState(folder)).text("engine")).toBe("whole");
});

test("a name is a part of a path, and given once; a worker that does not wait hears of it at the end", async () => {
  const folder = newFolder();
  for (const name of ["../up", "a/b", "", ".hidden"]) {
    await expect(new PartWriter(folderSink(folder)).write(name, "x")).rejects.toMatchObject({
      code: "workflow.invalid",
    });
  }
  const writer = new PartWriter(folderSink(folder));
  await writer.write("once", "x");
  await expect(writer.write("once", "x")).rejects.toThrow(/a file of that name already/);
  await expect(writer.finish()).rejects.toMatchObject({ code: "workflow.invalid" });
  const failing = new PartWriter(async () => {
    throw new Error("no disk");
  });
  failing.write("engine", "x");
  await expect(failing.finish()).rejects.toThrow("no disk");
});

test("what another process has is written by it into the folder, where that is on this machine, and else sent in pieces", async () => {
  const data = Buffer.from("weights and moments");
  const sha256 = createHash("sha256").update(data).digest("hex");
  const asked: string[] = [];
  const elsewhere = {
    async *[Symbol.asyncIterator]() {
      asked.push("pieces");
      yield data;
    },
    async writeTo(path: string) {
      asked.push("file");
      await writeFile(path, data);
      return { sizeBytes: data.byteLength, sha256 };
    },
  };
  for (const isHere of [true, false]) {
    const folder = join(newFolder(), "rank-0");
    const writer = new PartWriter(folderSink(folder), isHere ? folder : undefined);
    writer.write("engine", elsewhere);
    writer.write("beside", "x");
    const files = await writer.finish();
    expect(files[0]).toEqual({ name: "engine", sizeBytes: data.byteLength, sha256 });
    expect(files[1]?.name).toBe("beside");
    expect(await readFile(join(folder, "engine"))).toEqual(data);
  }
  expect(asked).toEqual(["file", "pieces"]);
  const folder = newFolder();
  for (const [told, wrong] of [
    [{ sizeBytes: 3, sha256 }, "wrote '19' bytes and resolved with"],
    [{ sizeBytes: data.byteLength, sha256: "no" }, "of which sha256 is not allowed"],
    [undefined, "of which sizeBytes is not allowed"],
  ] as const) {
    const lying = new PartWriter(folderSink(folder), folder);
    lying.write("engine", { ...elsewhere, writeTo: (path) => elsewhere.writeTo(path).then(() => told as never) });
    await expect(lying.finish()).rejects.toMatchObject({
      code: "workflow.invalid",
      message: expect.stringContaining(wrong),
    });
  }
  const idle = new PartWriter(folderSink(`${folder}-idle`), `${folder}-idle`);
  idle.write("engine", { ...elsewhere, writeTo: async () => ({ sizeBytes: 3, sha256 }) });
  await expect(idle.finish()).rejects.toThrow("wrote none");
  const full = new PartWriter(folderSink(folder), folder);
  const error = Object.assign(new Error("no space"), { code: "ENOSPC" });
  full.write("engine", { ...elsewhere, writeTo: () => Promise.reject(error) });
  await expect(full.finish()).rejects.toMatchObject({ code: "disk.full", message: expect.stringContaining("engine") });
});

test("PW1: of a file that comes in pieces one is held at a time, and pieces are small", async () => {
  const sizes: number[] = [];
  let held = 0;
  let most = 0;
  const writer = new PartWriter(async () => ({
    write: async (piece) => {
      sizes.push(piece.byteLength);
      await new Promise((resolve) => setImmediate(resolve));
      held -= piece.byteLength;
    },
    end: async () => "0".repeat(64),
    abandon: async () => {},
  }));
  const pieces = (function* () {
    for (let i = 0; i < 20; i++) {
      const piece = new Uint8Array(1000);
      held += piece.byteLength;
      most = Math.max(most, held);
      yield piece;
    }
  })();
  await writer.write("engine", pieces);
  expect(most).toBe(1000);
  await writer.write("large", new Uint8Array(3 * pieceBytes + 1));
  expect(sizes.slice(20)).toEqual([pieceBytes, pieceBytes, pieceBytes, 1]);
});

test("PW1: a large file that cannot be written fails with its path, and the next one is written", async () => {
  const folder = newFolder();
  const large = new Uint8Array(2 * pieceBytes + 3).map((_, index) => index);
  await mkdir(join(folder, "engine"), { recursive: true });
  const failing = new PartWriter(folderSink(folder));
  failing.write("engine", large);
  await expect(failing.finish()).rejects.toThrow(/EISDIR.*engine/);
  const broken = new PartWriter(folderSink(folder));
  const pieces = function* () {
    yield large;
    throw new Error("the engine died");
  };
  await expect(broken.write("half", pieces())).rejects.toThrow("the engine died");
  await saveState(`${folder}-next`, "actor", [{ engine: large, small: "x" }]);
  expect(Buffer.from(large).equals(await (await openSavedState(`${folder}-next`)).bytes("engine"))).toBe(true);
});

test("MF2: a file has its path told once it was checked, to be read by another process", async () => {
  const folder = newFolder();
  await saveState(folder, "actor", [{ engine: "whole" }]);
  const path = await (await openSavedState(folder)).stream("engine").checkedPath();
  expect(await readFile(path, "utf8")).toBe("whole");
  const state = await openSavedState(folder);
  await writeFile(path, "whale");
  await expect(state.stream("engine").checkedPath()).rejects.toMatchObject({ code: "checkpoint.corrupt" });
});

test("a state beyond 2 GiB is read as it was written", async () => {
  const folder = newFolder();
  const sizeBytes = 2 ** 31 + 5;
  const zeros = new Uint8Array(pieceBytes);
  const pieces = (function* () {
    for (let left = sizeBytes - 1; left > 0; left -= zeros.byteLength) yield zeros.subarray(0, left);
    yield Uint8Array.of(7);
  })();
  await saveState(folder, "actor", [{ engine: pieces }]);
  expect((await stat(fileOf(folder, 0, "engine"))).size).toBe(sizeBytes);
  const bytes = await (await openSavedState(folder)).bytes("engine");
  expect([bytes.byteLength, bytes[0], bytes.at(-1)]).toEqual([sizeBytes, 0, 7]);
  await rm(folder, { recursive: true });
}, 600_000);

test("MF2: what is taken out of a kept checkpoint is checked as a restore checks it, and only that", async () => {
  const path = newFolder();
  const folder = join(path, "actor");
  const engine = fc.uint8Array({ minLength: 1, maxLength: 3000 });
  await fc.assert(
    fc.asyncProperty(engine, engine, fc.nat(), fc.integer({ min: 1, max: 255 }), async (one, two, place, change) => {
      await rm(folder, { recursive: true, force: true });
      await saveState(folder, "actor", [{ "engine.0": one, "engine.1": two, other: "settings" }]);
      const files = () =>
        filesInCheckpoint({ path, step: 3, score: null, components: ["actor"] }, "actor", (name) =>
          name.startsWith("engine"),
        );
      await writeFile(fileOf(folder, 0, "other"), "Settings");
      expect((await files()).toSorted()).toEqual([0, 1].map((each) => fileOf(folder, 0, `engine.${each}`)));
      const damaged = Buffer.from(two);
      damaged[place % damaged.length]! ^= change;
      await writeFile(fileOf(folder, 0, "engine.1"), damaged);
      await expect(files()).rejects.toMatchObject({
        code: "checkpoint.corrupt",
        message: expect.stringContaining("where its manifest expects SHA-256"),
      });
    }),
    { numRuns: 20 },
  );
});
