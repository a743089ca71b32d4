/** Tokenizers that are not shipped: a configuration names the module that creates one. */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import type { Tokenizer } from "@treadle/learning";
import { validateConfig } from "@treadle/runtime/runner";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import {
  AgentRolloutConfig,
  AgentRolloutWorker,
  createTokenizer,
  DataConfig,
  openTokenizer,
  RolloutConfig,
  RolloutWorker,
  TokenizerChoice,
} from "../src/index.ts";
import { contextOf } from "./support/context.ts";
import { streamOf } from "./support/stream.ts";

const model = { vocabSize: 12, layers: 1, width: 16, heads: 2, contextLength: 8 };
const loadModule = (path: string) => import(pathToFileURL(path).href);
let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-tokenizer-"));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

let numModules = 0;
async function moduleWith(text: string): Promise<TokenizerChoice> {
  const module = join(folder, `${numModules++}.mjs`);
  await writeFile(module, text);
  return TokenizerChoice.parse({ tokenizer: { kind: "module", module, settings: { words: "one two three" } } });
}
const create = (choice: TokenizerChoice, vocabSize = model.vocabSize) =>
  createTokenizer(choice, { vocabSize }, { loadModule });

/** A token a word; `over` takes the place of some of it. */
const words = (over = ""): string => `
  export const createTokenizer = ({ settings, vocabSize }) => {
    const words = settings.words.split(" ");
    const text = (tokens) => Array.from(tokens).filter((token) => token > 1).map((token) => words[token - 2]).join(" ");
    return {
      paddingToken: 0, stopToken: 1, vocabularySize: words.length + 2, vocabSize,
      encode: (text) => text.split(" ").map((word) => words.indexOf(word) + 2),
      decode(tokens) { const end = Array.from(tokens).indexOf(1); return text(end < 0 ? tokens : Array.from(tokens).slice(0, end)); },
      transcribe: (tokens) => text(tokens),
      ${over}
    };
  };`;

test("UT1: a tokenizer of a module reads and writes as that says, with its settings", async () => {
  const choice = await moduleWith(words("chat: (messages) => messages.map(({ content }) => content).join(' '),"));
  const tokenizer = await create(choice);
  expect(tokenizer.encode("two three")).toEqual(Int32Array.of(3, 4));
  expect(tokenizer.decode([3, 1, 4])).toBe("two");
  expect(tokenizer.transcribe([3, 1, 4])).toBe("two three");
  expect(tokenizer.chat?.([{ role: "user", content: "one" }])).toBe("one");
  expect(tokenizer).toMatchObject({ paddingToken: 0, stopToken: 1, vocabularySize: 5 });
  expect((await create(await moduleWith(words()))).chat).toBeUndefined();
  await expect(create(choice, 4)).rejects.toThrow(/'model\.vocabSize' is '4', but the tokenizer of '.*' needs '5'/);
  expect(() => openTokenizer(choice, model)).toThrow("await createTokenizer in place of openTokenizer");
  await expect(create({ ...choice, alphabet: "a" })).rejects.toThrow("are both given");
});

test("UT1: rollouts read completions with it, and find an agent's calls by it", async () => {
  const { tokenizer } = await moduleWith(words());
  const asked: string[] = [];
  class Judged extends RolloutWorker {
    protected override rewards() {
      const score = (_: unknown, { text }: { text: string }) => asked.push(text);
      return super.rewards().with({ name: "own", create: () => ({ name: "own", score }) });
    }
  }
  const given = { model, tokenizer, groupSize: 4, maxTokens: 3, reward: { name: "own" } };
  const worker = new Judged(contextOf(RolloutConfig.parse(given), "rollout"));
  await worker.setup();
  const { source, sink, groups } = streamOf([[{ id: "one", tokens: Int32Array.of(2, 3) }]]);
  await worker.generate(source, sink);
  const ended = groups[0]?.episodes.filter(({ tokens }) => tokens.at(-1) === 1) ?? [];
  expect(asked).toHaveLength(ended.length);
  for (const text of asked)
    for (const word of text.split(" ")) expect(["one", "two", "three", "", undefined]).toContain(word);

  const agent = async (close: string) => {
    const call = { open: "one", close, end: "three", failure: "one", maxCalls: 1, maxAnswerTokens: 4 };
    const config = AgentRolloutConfig.parse({ ...given, reward: { name: "exact" }, call });
    await new AgentRolloutWorker(contextOf(config, "rollout")).setup();
  };
  await agent("two");
  await expect(agent("one two")).rejects.toThrow(/'one two' is not one token of the tokenizer of '/);
});

const refused = (text: string, says: string | RegExp) => [text, says] as const;
test.each([
  refused("export const createTokenizers = 1;", "which exports no function 'createTokenizer'; export one that returns"),
  refused("export const createTokenizer = async () => null;", "whose 'createTokenizer' returned 'null'"),
  refused("export const createTokenizer = () => { throw 'no'; };", "whose 'createTokenizer' threw 'no'"),
  refused(
    "export const createTokenizer = () => { throw Object.create(null); };",
    "whose 'createTokenizer' threw 'an object without a text'",
  ),
  refused(words("decode: undefined,"), "whose tokenizer lacks 'decode'; see Tokenizer of treadle/learning"),
  refused(words("vocabularySize: 0,"), "the vocabularySize '0'"),
  refused(words("stopToken: 5,"), "the stopToken '5'; give it integers, the two tokens at least 0 and below"),
  refused(words("paddingToken: NaN,"), "the paddingToken 'NaN'"),
  refused(words("stopToken: '1',"), "the stopToken '1'"),
  refused(words("chat: 'yes',"), "has 'string' as 'chat'"),
])("UT1: is refused before it is used: %s", async (text, says) => {
  await expect(create(await moduleWith(text))).rejects.toMatchObject({
    code: "config.invalid",
    message: expect.stringMatching(/^tokenizer\.module is '/),
  });
  await expect(create(await moduleWith(text))).rejects.toThrow(says);
});

test("PM1: one that is never made ends the run, with the key that says how long it may take", async () => {
  const { tokenizer } = await moduleWith("export const createTokenizer = () => new Promise(() => {});");
  const choice = TokenizerChoice.parse({ tokenizer: { ...tokenizer, timeoutMs: 100 } });
  await expect(create(choice)).rejects.toThrow(
    /^tokenizer\.module is '.*', whose 'createTokenizer' has not returned the tokenizer within 100 ms; .* raise tokenizer\.timeoutMs$/,
  );
});

test("UT1: one that cannot be loaded is told with its key, and what it has to be", async () => {
  const choice = TokenizerChoice.parse({ tokenizer: { kind: "module", module: join(folder, "missing.mjs") } });
  await expect(create(choice)).rejects.toMatchObject({
    code: "worker.load-failed",
    message: expect.stringMatching(/^tokenizer\.module is '.*set tokenizer\.module to a file in JavaScript/),
  });
});

const answers = (over: string, ask: (tokenizer: Tokenizer) => unknown, says: string) => [over, ask, says] as const;
test.each([
  answers("encode: () => [1, 5],", (own) => own.encode("a"), "'encode' of the tokenizer of '"),
  answers("encode: () => [1, 5],", (own) => own.encode("a"), "answered '5' at '1': allowed is integers from 0 to 4"),
  answers("encode: () => [0.5],", (own) => own.encode("a"), "answered '0.5' at '0'"),
  answers(
    "encode: () => [Object.create(null)],",
    (own) => own.encode("a"),
    "answered 'an object without a text' at '0'",
  ),
  answers("encode: () => [-1],", (own) => own.encode("a"), "answered '-1' at '0'"),
  answers("encode: async () => [1],", (own) => own.encode("a"), "answered a promise: allowed is a list of integers"),
  answers("encode: () => 'ab',", (own) => own.encode("a"), "answered 'string'"),
  answers("decode: () => 7,", (own) => own.decode([1]), "'decode' of the tokenizer of '"),
  answers("decode: async () => 'a',", (own) => own.decode([1]), "answered a promise: allowed is a text"),
  answers("transcribe: () => null,", (own) => own.transcribe([1]), "answered 'null': allowed is a text"),
  answers("chat: () => [1],", (own) => own.chat?.([]), "'chat' of the tokenizer of '"),
])("UT1: what it answers wrong is seen by nobody: %s", async (over, ask, says) => {
  const tokenizer = await create(await moduleWith(words(over)));
  expect(() => ask(tokenizer)).toThrow(says);
});

test("UT1: it is given copies, so what it writes into them is in no episode and no prompt", async () => {
  const over = `
    decode(tokens) { tokens[0] = 99; return "a"; },
    transcribe(tokens) { tokens.fill(99); return "a"; },
    chat(messages, { tools }) { messages[0].content = "b"; tools.length = 0; return "a"; },`;
  const tokenizer = await create(await moduleWith(words(over)));
  const episode = Int32Array.of(2, 3, 4);
  tokenizer.decode(episode.subarray(1));
  tokenizer.transcribe(episode.subarray(0, 2));
  expect(episode).toEqual(Int32Array.of(2, 3, 4));
  const messages = [{ role: "user", content: "one" }];
  const tools = [{ name: "sum" }];
  tokenizer.chat?.(messages, { tools });
  expect([messages, tools]).toEqual([[{ role: "user", content: "one" }], [{ name: "sum" }]]);
});

test("a kind that there is not is refused with those that there are", () => {
  const validated = (tokenizer: object) => () => validateConfig(TokenizerChoice, { tokenizer });
  expect(validated({ kind: "own", folder: "a" })).toThrow(/tokenizer\.kind: 'own' is not one of 'folder', 'module'$/);
  expect(validated({ kind: "modul" })).toThrow(/'modul' is not one of 'folder', 'module', did you mean 'module'\?$/);
  const data = (kind: string) => () => validateConfig(z.object({ data: DataConfig }), { data: { kind } });
  expect(data("file")).toThrow(/data\.kind: 'file' is not one of 'files', 'module', did you mean 'files'\?$/);
  expect(TokenizerChoice.parse({ tokenizer: { folder: "a" } })).toEqual({ tokenizer: { folder: "a" } });
});
