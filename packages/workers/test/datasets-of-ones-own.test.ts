/** Datasets that are not shipped: a configuration names the module that draws rows, from a position that it says itself. */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import type { Prompt } from "@treadle/contracts";
import { createCharacterTokenizer } from "@treadle/learning";
import type { Drawn, Position } from "@treadle/runtime";
import fc from "fast-check";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { DataConfig, openDataset } from "../src/index.ts";

const tokenizer = createCharacterTokenizer("0123456789+-=");
let folder: string;
const warnings: string[] = [];
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-dataset-"));
});
beforeEach(() => {
  warnings.length = 0;
});
afterAll(() => rm(folder, { recursive: true, force: true }));

let numModules = 0;
async function open(text: string, config: object = {}, journal = new Map<string, unknown>()) {
  const module = `${numModules++}.mjs`;
  await writeFile(join(folder, module), text);
  const own = "train" in config ? {} : { kind: "module", module, settings: { first: 10 } };
  return openDataset({
    config: DataConfig.parse({ ...own, maxAnswerTokens: 4, ...config }),
    tokenizer,
    maxPromptTokens: 8,
    ...{ seed: 5, projectRoot: folder, warn: (message: string) => warnings.push(message) },
    once: async <T>(name: string, act: (progress: () => void) => PromiseLike<T>) => {
      if (!journal.has(name)) journal.set(name, JSON.parse(JSON.stringify(await act(() => {}))));
      return journal.get(name) as T;
    },
    loadModule: (path) => import(pathToFileURL(join(folder, path)).href),
  });
}

/** Sums from one number on; `over` takes the place of some of it. */
const sums = (over = ""): string => `
  export const createDataset = ({ settings, seed, maxPromptTokens, tokenizer }) => {
    const row = (number) => ({ prompt: number + "+1=", answer: number + 1, level: { seed, maxPromptTokens } });
    const rows = (from, count) => Array.from({ length: count }, (_, at) => row(from + at));
    return {
      draw: (position = { row: settings.first }, count) => ({ rows: rows(position.row, count), position: { row: position.row + count } }),
      heldOut: (count) => rows(100, count),
      validation: async (count) => rows(200, count),
      demonstrated: (count) => rows(300, count),
      ${over}
    };
  };`;

const drawn = async (source: Awaited<ReturnType<typeof open>>, round: number, count: number, position?: Position) =>
  (await source.problemsAt(round, count, position)) as Drawn<Prompt>;

test("MD1: rows become prompts with text, tokens, answer and metadata, from a position on", async () => {
  const source = await open(sums());
  const { items, position } = await drawn(source, 3, 2);
  const metadata = { level: { seed: 5, maxPromptTokens: 8 } };
  expect(items).toEqual([
    { id: expect.stringMatching(/@3\.0$/), text: "10+1=", tokens: tokenizer.encode("10+1="), answer: "11", metadata },
    { id: expect.stringMatching(/@3\.1$/), text: "11+1=", tokens: tokenizer.encode("11+1="), answer: "12", metadata },
  ]);
  expect(position).toEqual({ row: 12 });
  expect((await drawn(source, 4, 1, position)).items[0]?.text).toBe("12+1=");
  expect((await source.heldOut(2)).map(({ text }) => text)).toEqual(["100+1=", "101+1="]);
  expect((await source.validation(1)).map(({ text }) => text)).toEqual(["200+1="]);
  expect((await source.demonstrated(1)).map(({ answer }) => answer)).toEqual(["301"]);
  expect(warnings).toEqual([]);
});

test("MD1: in however many parts rows are drawn, and whoever draws them, each comes once and in its order", async () => {
  const text = sums();
  await fc.assert(
    fc.asyncProperty(fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1, maxLength: 12 }), async (counts) => {
      let source = await open(text);
      let position: Position | undefined;
      const texts: (string | undefined)[] = [];
      for (const [at, count] of counts.entries()) {
        if (at % 3 === 2) source = await open(text); // a process that resumes
        const part = await drawn(source, at + 1, count, position);
        position = part.position;
        texts.push(...part.items.map((prompt) => prompt.text));
      }
      expect(texts).toEqual(texts.map((_, at) => `${10 + at}+1=`));
    }),
    { numRuns: 15 },
  );
});

test("MD3: a resume from another module, with other settings or from files in its place is refused, and the dataset closed", async () => {
  const closed: string[] = [];
  Object.assign(globalThis, { otherClosed: () => closed.push("closed") });
  const text = sums("close: () => globalThis.otherClosed(),");
  const journal = new Map<string, unknown>();
  const settings = { first: 10, from: { of: [1, 2], at: null } };
  // So goes on a run that has no such record, too: from then on it has one.
  await open(text, { settings }, journal);
  const [[name, kept] = []] = journal;
  expect([name, journal.size, kept]).toEqual([
    "data",
    1,
    { kind: "module", module: `${numModules - 1}.mjs`, settings },
  ]);
  const same = (more: object) => open(text, { settings, ...more }, journal);
  const module = `${numModules - 1}.mjs`;
  await same({ module, settings: { from: { at: null, of: [1, 2] }, first: 10 }, timeoutMs: 5 });
  expect(closed).toEqual([]);
  await expect(same({})).rejects.toMatchObject({
    code: "data.invalid",
    message: `data.module is '${numModules - 1}.mjs', and the run began with '${module}': its position would be another; restore them, or begin a new run`,
  });
  await expect(same({ module, settings: { first: 11 } })).rejects.toThrow(
    `data.settings is '{"first":11}', and the run began with '{"first":10,"from":{"of":[1,2],"at":null}}'`,
  );
  expect(closed).toEqual(["closed", "closed"]);
  await expect(open(text, {}, new Map([["data", "digest"]]))).rejects.toThrow(
    "data.kind is 'module', and the run began with 'files'",
  );
  await writeFile(join(folder, "rows.jsonl"), '{"prompt":"1=","answer":1}\n');
  const files = { train: "rows.jsonl", heldOutFraction: 0, validationFraction: 0 };
  await expect(open(text, files, journal)).rejects.toThrow("data.kind is 'files', and the run began with 'module'");
});

test("fields, ids and chats are read as those of files are", async () => {
  const row = "{ question: '1+1=', final: true, name: 'a' }";
  const source = await open(sums(`draw: (_, count) => ({ rows: Array(count).fill(${row}), position: null }),`), {
    fields: { prompt: "question", answer: "final", id: "name" },
  });
  const { items, position } = await drawn(source, 1, 2);
  expect(items.map(({ id, text, answer }) => [id, text, answer])).toEqual([
    ["a@1.0", "1+1=", "true"],
    ["a@1.1", "1+1=", "true"],
  ]);
  expect(position).toBeNull();
  const chat = await open(sums(), { chat: {} });
  await expect(drawn(chat, 1, 1)).rejects.toThrow("it is a chat, and the tokenizer has no chat template");
});

test.each([
  ["its function", "export const createDataset = () => new Promise(() => {});"],
  ["its module", "await new Promise(() => {}); export const createDataset = () => ({});"],
])("PM1: one that is never made ends the run, with the key that says how long it may take: %s", async (_, text) => {
  await expect(open(text, { timeoutMs: 100 })).rejects.toMatchObject({
    code: "config.invalid",
    message: expect.stringMatching(
      /^data\.module is '\d+\.mjs', whose 'createDataset' has not returned the dataset within 100 ms; .* raise data\.timeoutMs$/,
    ),
  });
});

test("MD2: a field that is undefined is none, as in JSON", async () => {
  const source = await open(
    sums("draw: (_, n) => ({ position: 1, rows: Array(n).fill({ ...row(1), at: undefined }) }),"),
  );
  const { items } = await drawn(source, 1, 1);
  expect(Object.keys(items[0]?.metadata ?? {})).toEqual(["level"]);
});

test("MD2: a training row whose prompt judges is told, once", async () => {
  const source = await open(sums("heldOut: (count) => rows(10, count),"));
  await source.heldOut(3);
  await drawn(source, 1, 2);
  await drawn(source, 2, 2);
  expect(warnings).toEqual([
    expect.stringMatching(/training row '.*@1\.0' has a prompt that judges.*keep the sets apart/),
  ]);
});

const wrong = (over: string, says: string | RegExp) => [over, says] as const;
test.each([
  wrong("draw: () => undefined,", "draw of round 7 gave no rows with a position: return { rows, position }"),
  wrong("draw: () => ({ rows: [] }),", "draw of round 7 gave no rows with a position"),
  wrong("draw: () => ({ position: 1, rows: [row(1)] }),", "draw of round 7 gave '1' rows where '2' were asked for"),
  wrong("draw: () => ({ position: 1, rows: 'ab' }),", "gave 'string' where '2' were asked for"),
  wrong("draw: (_, n) => ({ position: undefined, rows: rows(1, n) }),", "draw of round 7 has the position 'undefined'"),
  wrong(
    "draw: () => ({ position: 1, rows: [row(1), 5] }),",
    "row 1 of draw of round 7 is 'number': allowed is an object with the fields of a row",
  ),
  wrong(
    "draw: () => ({ position: 1, rows: [row(1), { ...row(1), at: [{ of: 1n }] }] }),",
    "has '1' at 'at.0.of', a bigint, which JSON has not",
  ),
  wrong(
    "draw: () => ({ position: 1, rows: [row(1), { ...row(1), at: () => 1 }] }),",
    "'at', a function, which JSON has not",
  ),
  wrong("draw: () => ({ position: 1, rows: [row(1), { ...row(1), at: NaN }] }),", "has 'NaN' at 'at', a number"),
  wrong(
    "draw: () => ({ position: 1, rows: [row(1), { ...row(1), at: new Date(0) }] }),",
    "at 'at', an instance of Date",
  ),
  wrong(
    "draw: () => { const at = row(1); at.at = [at]; return { position: 1, rows: [row(1), at] } },",
    "at 'at.0', a cycle",
  ),
  wrong("draw: () => ({ position: 1, rows: [row(1), { ...row(1), at: [undefined] }] }),", "has 'undefined' at 'at.0'"),
  wrong("draw: () => ({ position: 1, rows: [row(1), { answer: 1 }] }),", "it has no field 'prompt': allowed is text"),
  wrong(
    "draw: () => ({ position: 1, rows: [row(1), { prompt: 'a', answer: 1 }] }),",
    "character 'a' of 'a' has no token",
  ),
  wrong(
    "draw: () => ({ position: 1, rows: [row(1), { prompt: '123456789', answer: 1 }] }),",
    "its prompt has '9' tokens: allowed is 1 to '8'",
  ),
  wrong("draw: () => { throw new Error('the store is gone'); },", "draw of round 7 failed: the store is gone"),
  wrong("draw: async () => { throw 'gone'; },", "draw of round 7 failed: it threw 'gone'"),
  wrong("draw: () => { throw Object.create(null); },", "draw of round 7 failed: it threw 'an object without a text'"),
  wrong("draw: () => new Promise(() => {}),", "draw of round 7 has not answered within 100 ms"),
])("MD2: what it draws wrong ends the run, and says which draw that was: %s", async (over, says) => {
  const source = await open(sums(over), { timeoutMs: 100 });
  await expect(drawn(source, 7, 2)).rejects.toMatchObject({ code: "data.invalid" });
  await expect(drawn(source, 7, 2)).rejects.toThrow(says);
  await expect(drawn(source, 7, 2)).rejects.toThrow(/of '\d+\.mjs'/);
});

test.each([
  wrong("heldOut: (count) => rows(1, count - 1),", "held-out gave '1' rows where '2' were asked for"),
  wrong("heldOut: () => null,", "held-out gave 'null' where '2' were asked for"),
])("MD2: what judges is checked, too: %s", async (over, says) => {
  await expect((await open(sums(over))).heldOut(2)).rejects.toThrow(says);
});

test("nothing is imitated where it demonstrates nothing, or without an answer", async () => {
  const silent = await open(sums("demonstrated: undefined,"));
  await expect(silent.demonstrated(2)).rejects.toThrow("it has no 'demonstrated', and '2' rows are to be imitated");
  const open_ = await open(sums(), { fields: { answer: null } });
  await expect(open_.demonstrated(2)).rejects.toThrow("has no answer to imitate");
});

test("it is closed, and one that cannot be closes no run", async () => {
  const closed: string[] = [];
  Object.assign(globalThis, { datasetClosed: (what: string) => closed.push(what) });
  await (await open(sums("close: () => globalThis.datasetClosed('well'),")))[Symbol.asyncDispose]();
  await (await open(sums()))[Symbol.asyncDispose]();
  expect(closed).toEqual(["well"]);
  await (await open(sums("close: () => { throw new Error('is stuck'); },")))[Symbol.asyncDispose]();
  expect(warnings).toEqual([expect.stringContaining("close failed: is stuck")]);
});

test.each([
  wrong(
    "export const createDatasets = 1;",
    "which exports no function 'createDataset'; export one that returns the dataset",
  ),
  wrong("export const createDataset = () => 5;", "whose 'createDataset' returned 'number'"),
  wrong(
    sums("validation: 5, heldOut: 6,"),
    "whose dataset lacks 'heldOut', 'validation'; see OwnDataset of treadle/workers",
  ),
  wrong("export const createDataset = () => { throw new Error('no such table'); };", "no such table"),
])("PM1: is refused before it is used: %s", async (text, says) => {
  await expect(open(text)).rejects.toThrow(says);
});

test("what belongs to files is refused beside a module", () => {
  const config = { kind: "module", module: "a.mjs", maxAnswerTokens: 4, train: "a.jsonl" };
  expect(DataConfig.safeParse(config).error?.issues[0]).toMatchObject({ code: "unrecognized_keys", keys: ["train"] });
  expect(DataConfig.safeParse({ ...config, kind: "files", module: undefined }).error).toBeDefined();
  expect(DataConfig.safeParse({ train: "a.jsonl", maxAnswerTokens: 4 }).success).toBe(true);
});

test("a time that no timer can wait is refused, instead of being over at once", () => {
  const config = { kind: "module", module: "a.mjs", maxAnswerTokens: 4 };
  expect(DataConfig.parse({ ...config, timeoutMs: 2 ** 31 - 1 })).toMatchObject({ timeoutMs: 2 ** 31 - 1 });
  expect(DataConfig.safeParse({ ...config, timeoutMs: 2 ** 31 }).error?.issues[0]).toMatchObject({
    ...{ code: "too_big", path: ["timeoutMs"] },
  });
});
