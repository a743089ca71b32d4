/**
 * The tokenizers and chat templates of model folders give what Python's `transformers` gives, byte for byte: recorded answers
 * everywhere, and generated texts where there is a Python that has it. `support/python_tokenizers.py` made the folders and,
 * from `requests.jsonl`, the recorded answers.
 */
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { cp, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Message } from "@treadle/contracts";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { z } from "zod";
import { lacksTorch, python } from "../../../test/support/torch.ts";
import { AgentRolloutConfig, AgentRolloutWorker, openTokenizer, RolloutConfig, RolloutWorker } from "../src/index.ts";
import { openTokenizerFolder } from "../src/tokenizer/tokenizer-folder.ts";
import { contextOf } from "./support/context.ts";

const support = fileURLToPath(new URL("support/", import.meta.url));
const folders = join(support, "tokenizer-folders");
const names = ["byte-level", "metaspace", "characters"] as const;

const Chat = z.object({
  messages: z.array(z.looseObject({ role: z.string(), content: z.unknown() })),
  tools: z.array(z.unknown()).nullable(),
  variables: z.record(z.string(), z.unknown()),
});
const Request = z.object({ texts: z.array(z.string()), chats: z.array(Chat) });
type Request = z.infer<typeof Request>;
const Answer = z.object({
  texts: z.array(z.object({ ids: z.array(z.int()), special: z.array(z.int()), plain: z.string(), text: z.string() })),
  chats: z.array(z.union([z.string(), z.object({ error: z.string() })])),
});
const Answers = z.record(z.string(), Answer);

const plainTokens = (tokens: Int32Array) => Array.from(tokens);

/** What the folders' tokenizers give here, as Python's answer is. */
function answersTo({ texts, chats }: Request): z.infer<typeof Answers> {
  return Object.fromEntries(
    names.map((name) => {
      const tokenizer = openTokenizerFolder({ folder: join(folders, name) });
      const rows = texts.map((text) => {
        const ids = tokenizer.encode(text);
        return {
          ids: plainTokens(ids),
          special: plainTokens(tokenizer.encode(text, { special: true })),
          plain: tokenizer.decode(ids),
          text: tokenizer.transcribe(ids),
        };
      });
      const own = tokenizer.chat ? chats : [];
      const rendered = own.map(({ messages, tools, variables }) => {
        try {
          return tokenizer.chat?.(messages as Message[], { tools: tools ?? undefined, variables }) ?? "";
        } catch (error) {
          return { error: (error as Error).message };
        }
      });
      return [name, { texts: rows, chats: rendered }];
    }),
  );
}

/** Both refuse the same chats; what they say of it may differ. Texts with stop or padding tokens are read in another way here. */
function compare(request: Request, theirs: z.infer<typeof Answers>): void {
  const ours = answersTo(request);
  for (const name of names) {
    const [mine, python] = [ours[name], theirs[name]];
    const { stopToken, paddingToken } = openTokenizerFolder({ folder: join(folders, name) });
    for (const [index, text] of request.texts.entries()) {
      const given = python?.texts[index];
      const isCut = given?.ids.some((id) => id === stopToken || id === paddingToken);
      const read = isCut ? { ids: given?.ids, special: given?.special } : given;
      expect(mine?.texts[index], `${name}: ${JSON.stringify(text)}`).toMatchObject(read ?? {});
    }
    for (const [index, chat] of (python?.chats ?? []).entries()) {
      const what = `${name}: ${JSON.stringify(request.chats[index])}`;
      if (typeof chat === "string") expect(mine?.chats[index], what).toBe(chat);
      else expect(mine?.chats[index], what).toHaveProperty("error");
    }
  }
}

const jsonLines = (name: string): unknown[] =>
  readFileSync(join(support, name), "utf8")
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));

test("recorded texts and chats have Python's tokens and text", () => {
  const requests = jsonLines("requests.jsonl").map((line) => Request.parse(line));
  const answers = jsonLines("answers.jsonl").map((line) => Answers.parse(line));
  expect(answers).toHaveLength(requests.length);
  for (const [index, request] of requests.entries()) compare(request, answers[index] as z.infer<typeof Answers>);
});

/** Of many scripts, and old: Python and Node may know different versions of Unicode. No control characters, which their trims take differently. */
const ranges = [
  [0x20, 0x7e],
  [0xa0, 0x24f],
  [0x300, 0x36f],
  [0x3a3, 0x3ce],
  [0x410, 0x44f],
  [0x5d0, 0x5ea],
  [0x621, 0x64a],
  [0x905, 0x939],
  [0x2010, 0x205e],
  [0x3041, 0x3096],
  [0x4e00, 0x9fa5],
  [0xac00, 0xd7a3],
  [0x1f300, 0x1f64f],
] as const;

const piece = fc.oneof(
  fc.string({
    unit: fc.oneof(...ranges.map(([min, max]) => fc.integer({ min, max }).map((point) => String.fromCodePoint(point)))),
  }),
  fc.constantFrom(
    " ",
    "  ",
    "\n",
    "\t",
    "\r\n",
    "\u00a0",
    "\u3000",
    "it's",
    "I'LL",
    "1234",
    "ß",
    "e\u0301",
    "👩‍🚀",
    "東京",
  ),
  fc.constantFrom("<|im_start|>", "<think>", "</think>", "<s>", "<unk>", "▁", "<0x41>"),
  fc.constantFrom("the ", "fox", "jumps", "12+34=", "print(add(1, 2))"),
);
const text = fc.array(piece, { maxLength: 12 }).map((pieces) => pieces.join(""));
/** Python writes 1e16 and 1.0 as they are no more in JavaScript, and keeps keys that are integers in their places. */
const key = text.filter((name) => !/^\d+$/.test(name));
const leaf = fc.oneof(text, fc.boolean(), fc.integer(), fc.constantFrom(null, 0.5, -1.25, 0.001));
const json = fc.oneof(leaf, fc.array(leaf, { maxLength: 3 }), fc.dictionary(key, leaf, { maxKeys: 3 }));
const message = fc.oneof(
  fc.record({ role: fc.constantFrom("system", "user", "tool"), content: text }),
  fc.record({ role: fc.constant("assistant"), content: fc.option(text) }),
  fc.record({
    role: fc.constant("assistant"),
    content: text,
    tool_calls: fc.array(
      fc.record({ function: fc.record({ name: text, arguments: fc.dictionary(key, json, { maxKeys: 3 }) }) }),
    ),
  }),
);
const tool = fc.record({
  type: fc.constant("function"),
  function: fc.record({ name: text, description: text, parameters: fc.dictionary(key, json, { maxKeys: 3 }) }),
});
const chat = fc.record({
  messages: fc.array(message, { minLength: 1, maxLength: 6 }),
  tools: fc.option(fc.array(tool, { minLength: 1, maxLength: 2 })),
  variables: fc.constantFrom({}, { enable_thinking: false }, { enable_thinking: true }),
});

test("generated texts and chats have Python's tokens and text", (context) => {
  const reason = lacksTorch();
  if (reason) context.skip(reason);
  const seed = Number(process.env["TREADLE_SEED"]);
  const requests = fc.sample(
    fc.record({
      texts: fc.array(text, { minLength: 20, maxLength: 20 }),
      chats: fc.array(chat, { minLength: 10, maxLength: 10 }),
    }),
    { numRuns: 8, seed },
  );
  const script = join(support, "python_tokenizers.py");
  const input = requests.map((request) => `${JSON.stringify(request)}\n`).join("");
  const ran = spawnSync(python, [script, "answer", folders], { input, encoding: "utf8", maxBuffer: 2 ** 28 });
  expect(ran.status, ran.stderr).toBe(0);
  const answers = ran.stdout
    .trim()
    .split("\n")
    .map((line) => Answers.parse(JSON.parse(line)));
  expect(answers).toHaveLength(requests.length);
  for (const [index, request] of requests.entries()) {
    // as Python has read it
    compare(Request.parse(JSON.parse(JSON.stringify(request))), answers[index] as z.infer<typeof Answers>);
  }
}, 900_000);

describe("a folder", () => {
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), "treadle-tokenizer-"));
  });
  afterAll(() => rm(folder, { recursive: true, force: true }));

  async function changed(name: string, files: Record<string, string | undefined>): Promise<string> {
    const path = await mkdtemp(join(folder, "model-"));
    await cp(join(folders, name), path, { recursive: true });
    for (const [file, content] of Object.entries(files)) {
      if (content === undefined) await rm(join(path, file));
      else await writeFile(join(path, file), content);
    }
    return path;
  }
  const open = (path: string, more: object = {}) => openTokenizerFolder({ folder: path, ...more });

  test("that lacks something, or has what cannot be used, is refused with the remedy", async () => {
    expect(() => open(join(folder, "none"))).toThrow(
      /tokenizer\.folder is '.*none', which has no 'tokenizer\.json'; name the folder/,
    );
    const broken = await changed("characters", { "tokenizer.json": "{" });
    expect(() => open(broken)).toThrow(/has a 'tokenizer\.json' that is not JSON/);
    const empty = await changed("characters", { "tokenizer.json": "{}" });
    expect(() => open(empty)).toThrow(/has a 'tokenizer\.json' that cannot be used/);
    const endless = await changed("characters", { "tokenizer_config.json": "{}" });
    expect(() => open(endless)).toThrow(/names no 'eos_token'.*tokenizer\.stop/);
    expect(open(endless, { stop: "=" }).stopToken).toBe(16);
    expect(() => open(endless, { stop: "?" })).toThrow("has no token '?'");
    const template = await changed("byte-level", { "chat_template.jinja": "{% if %}" });
    expect(() => open(template)).toThrow("has a chat template that cannot be parsed");
  });

  test("keeps its template in a file or in its configuration", async () => {
    const chat = (path: string) => open(path).chat?.([{ role: "user", content: "Hi" }]);
    expect(chat(await changed("characters", {}))).toBeUndefined();
    const inside = JSON.stringify({
      eos_token: { content: "<end>" },
      chat_template: "{{ messages[0].content }}{{ eos_token }}",
    });
    expect(chat(await changed("characters", { "tokenizer_config.json": inside }))).toBe("Hi<end>");
    const named = JSON.stringify({
      eos_token: "<end>",
      chat_template: [
        { name: "rag", template: "x" },
        { name: "default", template: "y" },
      ],
    });
    expect(chat(await changed("characters", { "tokenizer_config.json": named }))).toBe("y");
  });

  test("has a template that strips the characters that it names, and no others", async () => {
    const stripped = (expression: string, content: string) => {
      const chat_template = `[{{ messages[0].content.${expression} }}]`;
      return changed("characters", {
        "tokenizer_config.json": JSON.stringify({ eos_token: "<end>", chat_template }),
      }).then((path) => open(path).chat?.([{ role: "user", content }]));
    };
    expect(await stripped("lstrip('\\n')", "\n\n a\n")).toBe("[ a\n]");
    expect(await stripped("rstrip('\\n')", "\n a \n\n")).toBe("[\n a ]");
    expect(await stripped("strip('ab').lstrip(' ')", "abba c ab")).toBe("[c ]");
    expect(await stripped("strip()", " \n a \n")).toBe("[a]");
  });

  test("has a text for every token, up to the first stop token or beyond, and none for tokens that only the model has", () => {
    const tokenizer = open(join(folders, "byte-level"));
    const { stopToken, vocabularySize: beyond } = tokenizer;
    const [before, after] = ["<think>a</think>b", "c"].map((part) => [...tokenizer.encode(part)]);
    const tokens = [...(before ?? []), stopToken, ...(after ?? []), beyond, beyond + 5];
    expect(tokenizer.decode(tokens)).toBe("<think>a</think>b");
    expect(tokenizer.transcribe(tokens)).toBe("<think>a</think>b<|im_end|>c");
  });

  test("needs a model with as many tokens, and is given instead of an alphabet", () => {
    const tokenizer = { folder: join(folders, "characters") };
    expect(openTokenizer({ tokenizer }, { vocabSize: 18 }).vocabularySize).toBe(18);
    expect(() => openTokenizer({ tokenizer }, { vocabSize: 17 })).toThrow(
      /'model\.vocabSize' is '17', but the tokenizer of '.*' needs '18'/,
    );
    expect(() => openTokenizer({ tokenizer, alphabet: "a" }, { vocabSize: 18 })).toThrow("are both given");
    expect(() => openTokenizer({}, { vocabSize: 18 })).toThrow("neither 'alphabet' nor 'tokenizer' is given");
  });

  test("is where a rollout's tokens come from, and an agent's calls, which are single tokens of it", () => {
    const model = { vocabSize: 425, contextLength: 16, layers: 1, width: 8, heads: 1 };
    const tokenizer = { folder: join(folders, "byte-level") };
    const given = { model, tokenizer, groupSize: 2, maxTokens: 4, reward: { name: "exact" } };
    RolloutWorker.checkConfig(RolloutConfig.parse(given));
    const call = { open: "<think>", close: "</think>", end: "|", failure: "error", maxCalls: 1, maxAnswerTokens: 4 };
    const agent = (own: object) => () =>
      new AgentRolloutWorker(contextOf(AgentRolloutConfig.parse({ ...given, call: { ...call, ...own } }), "rollout"));
    expect(agent({})).not.toThrow();
    expect(agent({ close: "</tool>" })).toThrow(/'<\/tool>' is not one token of the tokenizer of '/);
  });
});
