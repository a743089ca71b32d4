/** PGR1: which folders of the machine a run's configuration may have engines read and write, under an agent. */
import { TorchConfig } from "@treadle/engines";
import { afterEach, expect, test, vi } from "vitest";
import { InferenceConfig, InferenceWorker, openTokenizer, RolloutConfig, RolloutWorker } from "../src/index.ts";
import { contextOf } from "./support/context.ts";

afterEach(() => vi.unstubAllEnvs());

const rights = {
  node: "a",
  project: "/srv/p",
  interpreters: [],
  programs: [],
  models: ["/models"],
  variables: [],
};
const model = { vocabSize: 16, contextLength: 12, layers: 1, width: 8, heads: 1 };
const server = { url: "http://127.0.0.1:1", model: "/models/tiny" };
const rollout = (engine: object) =>
  new RolloutWorker(
    contextOf(
      RolloutConfig.parse({
        model,
        engine,
        alphabet: "12+=",
        groupSize: 4,
        maxTokens: 6,
        temperature: 1,
        reward: { name: "arithmetic" },
      }),
      "rollout",
    ),
  );
const scorer = (engine: object) =>
  new InferenceWorker(contextOf(InferenceConfig.parse({ model, engine }), "inference"));

test.each([
  ["a rollout's model", () => rollout({ kind: "torch", path: "/etc" }), /'\/etc' \('engine.path'\).*--allow-models/],
  ["a scorer's", () => scorer({ kind: "torch", path: "/models/../etc" }), /'engine.path'/],
  ["a server's", () => rollout({ kind: "vllm", ...server, model: "/home/x" }), /'\/home\/x' \('engine.model'\)/],
  ["what trains a server's", () => scorer({ kind: "sglang", ...server, model: "/home/x" }), /'engine.model'/],
  [
    "a server's weights",
    () => rollout({ kind: "vllm", ...server, weightsFolder: "/models/w" }),
    /writes to '\/models\/w' \('engine.weightsFolder'\)/,
  ],
])("%s beyond what the agent names is refused before anything starts", async (_, create, message) => {
  vi.stubEnv("TREADLE_PROGRAM_RIGHTS", JSON.stringify(rights));
  await expect(create().setup()).rejects.toMatchObject({
    code: "node.forbidden",
    message: expect.stringMatching(message),
  });
});

test("a model that lies where the agent has its models is read", async () => {
  vi.stubEnv("TREADLE_PROGRAM_RIGHTS", JSON.stringify(rights));
  await expect(rollout({ kind: "vllm", ...server }).setup()).rejects.toMatchObject({ code: "config.invalid" }); // it is not there
});

test("a tokenizer's folder is one of the project's, or of its models", () => {
  vi.stubEnv("TREADLE_PROGRAM_RIGHTS", JSON.stringify(rights));
  const open = (folder: string) => () => openTokenizer({ tokenizer: { folder } }, { vocabSize: 1000 });
  for (const folder of ["/etc", "/models/../etc"])
    expect(open(folder), folder).toThrow(expect.objectContaining({ code: "node.forbidden" }));
  expect(open("/models/tiny")).toThrow(/no 'tokenizer.json'/);
});

test("what a server is told of adapters are names of modules, and no arguments of others", () => {
  const targetsOf = (...targets: string[]) => TorchConfig.parse({ kind: "torch", lora: { rank: 1, targets } });
  expect(targetsOf("q_proj", "W_pack").lora?.targets).toEqual(["q_proj", "W_pack"]);
  for (const target of ["--trust-remote-code", "q_proj --x", "", "a.b", "a\nb"])
    expect(() => targetsOf("q_proj", target), target).toThrow("must be the name of a module");
});
