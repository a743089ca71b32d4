/** Prompts from JSONL and Parquet files: what is read, which set a row is in, where a run goes on, and what is refused. */
import { mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Prompt } from "@treadle/contracts";
import { createCharacterTokenizer } from "@treadle/learning";
import fc from "fast-check";
import { type ColumnSource, parquetWriteBuffer } from "hyparquet-writer";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { type Dataset, FileDataConfig, openDataset, openTokenizer } from "../src/index.ts";

const tokenizer = createCharacterTokenizer("0123456789+-=");

let projectRoot: string;
const warnings: string[] = [];
beforeEach(async () => {
  projectRoot = await mkdtemp(join(tmpdir(), "treadle-data-"));
  warnings.length = 0;
});
afterEach(() => rm(projectRoot, { recursive: true, force: true }));

async function write(name: string, content: string | Uint8Array): Promise<void> {
  await mkdir(dirname(join(projectRoot, name)), { recursive: true });
  await writeFile(join(projectRoot, name), content);
}
const lines = (rows: readonly unknown[]): string => rows.map((row) => `${JSON.stringify(row)}\n`).join("");
const sums = (count: number, from = 0) =>
  Array.from({ length: count }, (_, index) => ({ prompt: `${from + index}+1=`, answer: from + index + 1 }));

type Given = Omit<Partial<Parameters<typeof openDataset>[0]>, "config"> & { journal?: Map<string, unknown> };

function open(config: object, { journal = new Map<string, unknown>(), ...more }: Given = {}): Promise<Dataset> {
  return openDataset({
    config: FileDataConfig.parse({ train: "train.jsonl", maxAnswerTokens: 4, ...config }),
    tokenizer,
    maxPromptTokens: 12,
    seed: 5,
    projectRoot,
    warn: (message) => warnings.push(message),
    once: async <T>(name: string, act: (progress: () => void) => PromiseLike<T>) => {
      if (!journal.has(name)) journal.set(name, await act(() => {}));
      return journal.get(name) as T;
    },
    ...more,
  });
}

const rowOf = ({ id }: Prompt): string => id.slice(0, id.indexOf("@"));
const all = { heldOutFraction: 0, validationFraction: 0 };

describe("rows", () => {
  test("become prompts with text, tokens, answer and metadata", async () => {
    await write(
      "train.jsonl",
      '\ufeff{"q": "1+1=", "a": 2, "level": {"of": [1]}}\r\n\n{"q": "2+2=", "a": "4", "level": null}',
    );
    const data = await open({ fields: { prompt: "q", answer: "a" }, ...all });
    const prompts = data.problemsAt(1, 2).sort((a, b) => ((a.text as string) < (b.text as string) ? -1 : 1));
    expect(prompts).toEqual([
      {
        id: expect.any(String),
        text: "1+1=",
        tokens: tokenizer.encode("1+1="),
        answer: "2",
        metadata: { level: { of: [1] } },
      },
      {
        id: expect.any(String),
        text: "2+2=",
        tokens: tokenizer.encode("2+2="),
        answer: "4",
        metadata: { level: null },
      },
    ]);
  });

  test("of Parquet are those of JSONL, whatever their row groups", async () => {
    const rows = sums(50).map((row, index) => ({ ...row, answer: `${row.answer}`, weight: index / 2 }));
    const column = (name: keyof (typeof rows)[number], type: "STRING" | "DOUBLE"): ColumnSource => ({
      name,
      data: rows.map((row) => row[name]),
      type,
    });
    const columnData = [column("prompt", "STRING"), column("answer", "STRING"), column("weight", "DOUBLE")];
    await write("train.jsonl", lines(rows));
    await write("train.parquet", new Uint8Array(parquetWriteBuffer({ columnData, rowGroupSize: 7 })));
    const fromParquet = await open({ train: "train.parquet", ...all });
    expect(fromParquet.problemsAt(3, 50)).toEqual((await open(all)).problemsAt(3, 50));
  });

  test("of many chunks and any line ends are read once each", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.string({ unit: "grapheme", maxLength: 40 }), { minLength: 1, maxLength: 30 }),
        fc.constantFrom("\n", "\r\n", "\n\n"),
        async (notes, end) => {
          const rows = notes.map((note, index) => ({ prompt: `${index}=`, answer: 1, note, pad: "x".repeat(20_000) }));
          await write("train.jsonl", rows.map((row) => JSON.stringify(row)).join(end));
          const read = (await open(all)).problemsAt(1, rows.length);
          expect(new Map(read.map(({ text, metadata }) => [text, metadata?.["note"]]))).toEqual(
            new Map(rows.map(({ prompt, note }) => [prompt, note])),
          );
        },
      ),
      { numRuns: 20 },
    );
  });

  test("that are equal are one, in whatever order their fields stand", async () => {
    await write(
      "train.jsonl",
      '{"prompt":"1=","answer":1,"a":{"x":1,"y":2}}\n{"answer":1,"a":{"y":2,"x":1},"prompt":"1="}\n',
    );
    const data = await open(all);
    expect(data.rows.training).toBe(1);
    expect(data.left.equal).toBe(1);
  });

  test("that are too long are left out when that is asked for, and counted", async () => {
    await write("train.jsonl", lines([...sums(3), { prompt: "1234567890123=", answer: 1 }]));
    const data = await open({ tooLong: "drop", ...all });
    expect(data.rows.training).toBe(3);
    expect(warnings).toEqual([expect.stringContaining("'1' rows are left out as too long")]);
  });
});

test("a text or a chat becomes what the template of a model's folder makes of it", async () => {
  const folder = fileURLToPath(new URL("support/tokenizer-folders/byte-level", import.meta.url));
  const model = openTokenizer({ tokenizer: { folder } }, { vocabSize: 1000 });
  const user = { role: "user", content: "1+1?" };
  const tools = [{ type: "function", function: { name: "add" } }];
  await write("train.jsonl", lines([{ prompt: "1+1?", chat: [user], tools, answer: 2 }]));
  const given = { tokenizer: model, maxPromptTokens: 200 };
  const system = { role: "system", content: "Add." };
  const template = { enable_thinking: false };
  const [wrapped] = (await open({ chat: { system: system.content }, template, ...all }, given)).problemsAt(1, 1);
  expect(wrapped?.text).toBe(model.chat?.([system, user], { variables: template }));
  expect(wrapped?.text).toMatch(/^<\|im_start\|>system\nAdd.*<\/think>\n\n$/s);
  const [chat] = (await open({ fields: { messages: "chat", tools: "tools" }, ...all }, given)).problemsAt(1, 1);
  expect(chat?.messages).toEqual([user]);
  expect(chat?.text).toBe(model.chat?.([user], { tools }));
  expect(chat?.tokens).toEqual(model.encode(chat?.text ?? ""));
  expect(chat?.metadata).toEqual({ prompt: "1+1?" });
});

describe("sets", () => {
  test("DT1 share no prompt, whether a file or a hash parts them", async () => {
    await write("train.jsonl", lines([...sums(200), ...sums(100).map((row) => ({ ...row, note: "again" }))]));
    const parted = await open({ heldOutFraction: 0.3, validationFraction: 0.2 });
    const { training, validation, heldOut } = parted.rows;
    expect(training + validation + heldOut).toBe(300);
    const texts = (prompts: readonly Prompt[]) => new Set(prompts.map(({ text }) => text));
    const [taught, chosen, judged] = [
      texts(parted.demonstrated(training)),
      texts(parted.validation(validation)),
      texts(parted.heldOut(heldOut)),
    ];
    expect(taught.size + chosen.size + judged.size).toBe(200);
    expect(new Set([...taught, ...chosen, ...judged]).size).toBe(200);
    const otherwise = await open({ heldOutFraction: 0.3, validationFraction: 0.2, split: 1 });
    expect(texts(otherwise.heldOut(20))).not.toEqual(texts(parted.heldOut(20)));

    await write("test.jsonl", lines(sums(30, 190)));
    const withFile = await open({ heldOut: "test.jsonl", validationFraction: 0 });
    expect(withFile.rows).toEqual({ training: 290, validation: 0, heldOut: 30 });
    expect(withFile.left.judged).toBe(10);
    expect(warnings).toEqual([expect.stringContaining("'10' whose prompts are in a set that judges")]);
  });

  test("that judge are the same for every seed", async () => {
    await write("train.jsonl", lines(sums(100)));
    const [one, other] = [await open({}, { seed: 1 }), await open({}, { seed: 2 })];
    expect(one.heldOut(5)).toEqual(other.heldOut(5));
    expect(one.problemsAt(1, 5)).not.toEqual(other.problemsAt(1, 5));
  });
});

describe("positions", () => {
  test("DT2, DT3 each epoch has every row once, in steps of any size, wherever a run begins again", async () => {
    await write("train.jsonl", lines(sums(23)));
    const asked = await open(all);
    const resumed = await open(all);
    await fc.assert(
      fc.property(fc.integer({ min: 1, max: 40 }), fc.nat({ max: 60 }), (batch, from) => {
        const steps = Math.ceil((3 * 23) / batch);
        const prompts = Array.from({ length: steps }, (_, step) => asked.problemsAt(step + 1, batch)).flat();
        for (let epoch = 0; epoch < 3; epoch++) {
          expect(new Set(prompts.slice(23 * epoch, 23 * (epoch + 1)).map(rowOf)).size).toBe(23);
        }
        expect(new Set(prompts.map(({ id }) => id)).size).toBe(prompts.length);
        expect(resumed.problemsAt(from + 1, batch)).toEqual(asked.problemsAt(from + 1, batch));
      }),
    );
    const order = (epoch: number) => asked.problemsAt(epoch, 23).map(rowOf);
    expect(order(1)).not.toEqual(order(2));
  });

  test("DT2 a resumed run with other files is refused", async () => {
    const journal = new Map<string, unknown>();
    await write("train.jsonl", lines(sums(20)));
    await open({}, { journal });
    await open({}, { journal });
    await write("train.jsonl", lines(sums(21)));
    await expect(open({}, { journal })).rejects.toThrow("not those that the run began with");
  });
});

describe("what is refused", () => {
  const good = { prompt: "1=", answer: 1 };
  test.each([
    [
      "a row without the prompt",
      lines([good, { question: "2=", answer: 2 }]),
      {},
      /line 2 of 'train\.jsonl': it has no field 'prompt': allowed is text; its fields are 'question', 'answer'; .*data\.fields\.prompt/,
    ],
    [
      "a row without the answer",
      lines([{ prompt: "2=" }]),
      {},
      /line 1 of 'train\.jsonl': it has no field 'answer'.*data\.fields\.answer/,
    ],
    ["a prompt that is no text", lines([{ ...good, prompt: 5 }]), {}, /line 1 .* its 'prompt' is '5': allowed is text/],
    [
      "an answer that is a list",
      lines([{ ...good, answer: [1] }]),
      {},
      /its 'answer' is '\[1\]': allowed is text, a number or a boolean/,
    ],
    [
      "bad JSON",
      `${lines([good])}\n{"prompt": "2=", \n`,
      {},
      /line 3 of 'train\.jsonl' is not JSON, '\{"prompt": "2=", '/,
    ],
    ["a line that is a list", "[1]\n", {}, /line 1 of 'train\.jsonl' is '\[1\]': allowed is one JSON object a line/],
    ["another encoding", Buffer.from([0x7b, 0xff, 0x7d]), {}, /line 1 of 'train\.jsonl' is not UTF-8/],
    ["an endless line", Buffer.alloc(17 * 2 ** 20, 0x20), {}, /line 1 of 'train\.jsonl' is longer than '16' MiB/],
    ["an empty file", "\n\n", {}, /'train\.jsonl' has no row/],
    ["a missing file", "", { train: "none.jsonl" }, /'none\.jsonl' is not a file/],
    ["another format", "", { train: "train.csv" }, /'train\.csv' is not a file|ends in '\.csv'/],
    [
      "a file elsewhere",
      "",
      { train: "../train.jsonl" },
      /'\.\.\/train\.jsonl' of 'data' is not below the project's root/,
    ],
    [
      "a link that leads elsewhere",
      "",
      { train: "link.jsonl" },
      /'link\.jsonl' of 'data' is not below the project's root/,
    ],
    [
      "an id of two rows",
      lines([
        { ...good, n: 1 },
        { prompt: "2=", answer: 2, n: 1 },
      ]),
      { fields: { id: "n" } },
      /line 2 .*: another row has its id '1' in 'n'/,
    ],
    ["a row without its id", lines([good]), { fields: { id: "n" } }, /line 1 .*: it has no field 'n', its id/],
    ["a character without a token", lines([{ ...good, prompt: "a=" }]), {}, /line 1 of 'train\.jsonl': character 'a'/],
    [
      "a prompt beyond the context",
      lines([{ ...good, prompt: "1234567890123" }]),
      {},
      /line 1 .* '13' tokens: allowed is '12', .*data\.maxAnswerTokens/,
    ],
    [
      "a chat without a template",
      lines([{ messages: [{ role: "user", content: "1=" }], answer: 1 }]),
      { fields: { messages: "messages" } },
      /has no chat template/,
    ],
    [
      "messages without roles",
      lines([{ messages: [{ content: "1=" }], answer: 1 }]),
      { fields: { messages: "messages" } },
      /allowed is a list of messages, each with a role/,
    ],
    [
      "too much",
      lines(sums(20).map((row) => ({ ...row, pad: "x".repeat(20_000) }))),
      { maxMiB: 0.25 },
      /more than '0\.25' MiB, which data\.maxMiB allows/,
    ],
    [
      "no rows to train on",
      lines(sums(20)),
      { heldOut: "train.jsonl" },
      /no training row is left .*'20' have prompts that judge/,
    ],
  ])("%s", async (_, content, config, message) => {
    await write("train.jsonl", content);
    await symlink("/etc/hostname", join(projectRoot, "link.jsonl"));
    await expect(open({ ...all, ...config })).rejects.toThrow(
      expect.objectContaining({ code: "data.invalid", message: expect.stringMatching(message) }),
    );
  });

  test("several rows at once, up to five", async () => {
    await write("train.jsonl", lines([good, ...Array.from({ length: 9 }, () => ({ prompt: "" }))]));
    const failed = await open(all).catch((error: Error) => error.message);
    expect(`${failed}`.match(/line \d/g)).toEqual(["line 2", "line 3", "line 4", "line 5", "line 6"]);
  });

  test("a Parquet file that is none", async () => {
    await write("train.parquet", "PAR1 but no more");
    await expect(open({ train: "train.parquet" })).rejects.toThrow(/'train\.parquet' cannot be read as Parquet/);
  });

  test("more rows than a set has, and imitation without answers", async () => {
    await write("train.jsonl", lines(sums(20)));
    const data = await open({ fields: { answer: null }, heldOutFraction: 0.2 });
    expect(() => data.heldOut(21)).toThrow(/'21' held-out rows are asked for, and 'data' has '\d': .*data\.heldOut/);
    expect(() => data.demonstrated(1)).toThrow("has no answer to imitate");
  });
});
