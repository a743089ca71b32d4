/** Servers that Treadle starts: doubles as programs, started, watched and ended as the real ones would be. */
import { spawn } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { ServerEngine } from "@treadle/engines";
import { SglangDouble, tinyWeights, VllmDouble, writeTinyModel } from "@treadle/engines/testing";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import { conformingModel } from "../src/testing/conformance.ts";
import { writeDoublePython } from "./support/double-python.ts";

const model = { ...conformingModel, layers: 1, width: 8, heads: 1 };
const sampling = { maxTokens: 3, temperature: 1, stopTokens: [], seed: 9 };
const prompts = [[1, 2], [3], [4, 5, 6]].map((tokens) => Int32Array.from(tokens));
const own = tinyWeights(conformingModel, 1);

let folder: string;
let tiny: string;
let python: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-launch-test-"));
  tiny = join(folder, "tiny");
  await writeTinyModel(tiny, conformingModel, own);
  python = await writeDoublePython(folder);
});
afterAll(() => rm(folder, { recursive: true, force: true }));

type Kind = "vllm" | "sglang";
type Launch = Record<string, unknown>;
type Launched = { readonly engine: ServerEngine; readonly lines: string[]; readonly warnings: string[] };
const engines: ServerEngine[] = [];
afterEach(async () => {
  for (const engine of engines.splice(0)) await engine.close();
  expect(serversOf(tiny)).toEqual([]);
});

async function launch(
  kind: Kind,
  own: Launch = {},
  changes: Record<string, unknown> = {},
  devices: readonly number[] = [],
): Promise<Launched> {
  const lines: string[] = [];
  const warnings: string[] = [];
  const config = { kind, launch: { python, ...own }, model: tiny, weightsFolder: join(folder, "weights"), ...changes };
  const options = { devices, warn: (it: string) => void warnings.push(it), log: (it: string) => void lines.push(it) };
  const engine = await ServerEngine.create(model, config as never, options);
  engines.push(engine);
  return { engine, lines, warnings };
}
const doing = (wanted: Record<string, unknown>, own: Launch = {}) => ({
  ...own,
  environment: { TREADLE_DOUBLE: JSON.stringify(wanted) },
});

/** Processes that have the folder in their command line: servers, and what they have started. */
function serversOf(text: string): { readonly pid: number; readonly words: readonly string[] }[] {
  return readdirSync("/proc").flatMap((name) => {
    try {
      if (!/^\d+$/.test(name) || / Z /.test(readFileSync(`/proc/${name}/stat`, "utf8"))) return [];
      const words = readFileSync(`/proc/${name}/cmdline`, "utf8").split("\0");
      return words.some((word) => word.includes(text)) ? [{ pid: Number(name), words }] : [];
    } catch {
      return [];
    }
  });
}
const server = () => serversOf(tiny).find(({ words }) => words.includes("-m"))!;
const serverPid = () => server().pid;
async function eventually(look: () => boolean): Promise<void> {
  while (!look()) await new Promise((later) => setTimeout(later, 20));
}

describe.each(["vllm", "sglang"] as const)("of kind %s", (kind) => {
  test("one is started with all that the engine needs, generates as one that runs already, and leaves nothing", async () => {
    const { engine, lines, warnings } = await launch(kind);
    const double = await new { sglang: SglangDouble, vllm: VllmDouble }[kind]({ model: tiny }).start();
    const attached = await ServerEngine.create(model, { kind, url: double.url, model: tiny });
    engines.push(attached);
    const newer = tinyWeights(conformingModel, 2, 1);
    for (const weights of [undefined, newer]) {
      if (weights) for (const each of [engine, attached]) await each.loadWeights(weights);
      expect(await engine.generate(prompts, sampling)).toEqual(await attached.generate(prompts, sampling));
    }
    expect(engine.tellsProgress).toBe(true);
    expect(server().words.join(" ")).toContain("--stream-interval 8");
    expect(warnings).toEqual([expect.stringMatching(/does not promise the same tokens/)]);
    expect(lines.join("\n")).toMatch(/a double of .* starts[\s\S]*startup complete/);
    expect(serversOf(tiny)).toHaveLength(2);
    await engine.close();
    expect(serversOf(tiny)).toEqual([]);
    await double.kill();
  });

  test("LSV3 its key is in no list of processes, and in nothing that it prints here", async () => {
    const { lines } = await launch(kind);
    const { words } = server();
    expect(words.join(" ")).not.toMatch(/[0-9a-f]{64}/);
    expect(lines.join("\n")).not.toMatch(/[0-9a-f]{64}/);
    if (kind === "sglang") expect(lines.join("\n")).toContain("api_key='***'");
  });

  test("on its rank's devices, of which it gives its memory back, the same tokens are promised", async () => {
    const { engine, warnings } = await launch(kind, {}, { sharedMemoryMiB: 100 }, [2, 5]);
    await engine.restore();
    const before = await engine.generate(prompts, sampling);
    await engine.release();
    await engine.restore();
    expect(await engine.generate(prompts, sampling)).toEqual(before);
    expect(warnings).toEqual([]);
    const environment = readFileSync(`/proc/${serverPid()}/environ`, "utf8").split("\0");
    expect(environment).toContain("CUDA_VISIBLE_DEVICES=2,5");
  });

  test("it is started for adapters, of any rank, where they are loaded alone", async () => {
    const trainer = { kind: "torch", lora: { rank: 9 } };
    const { engine } = await launch(kind, {}, { loads: "adapter", trainer });
    expect(await engine.generate(prompts, sampling)).toHaveLength(3);
    const { words } = server();
    expect(words[words.indexOf("--max-lora-rank") + 1]).toBe(kind === "vllm" ? "16" : "9");
  });

  test("LSV2 one that is killed is told with what it said last, its calls fail, and nothing of it is left", async () => {
    const { engine } = await launch(kind);
    process.kill(serverPid(), "SIGKILL");
    expect(await engine.ended).toMatchObject({
      code: "service.failed",
      message: expect.stringMatching(/ended by signal SIGKILL; it said last: [\s\S]*startup complete/),
    });
    expect(serversOf(tiny)).toEqual([]);
    await expect(engine.generate(prompts, sampling)).rejects.toMatchObject({ code: "service.failed" });
  });

  test("LSV2 one that is frozen is told, and ended, though nobody asks it anything", async () => {
    const { engine } = await launch(kind, {}, { callTimeoutMs: 3_000 });
    process.kill(serverPid(), "SIGSTOP");
    expect(await engine.ended).toMatchObject({
      code: "service.failed",
      message: expect.stringMatching(/no answer within 3000 ms[\s\S]*was ended/),
    });
    expect(serversOf(tiny)).toEqual([]);
  });

  test("two start beside each other, each with a port, a key and weights of its own", async () => {
    const [one, other] = await Promise.all([launch(kind), launch(kind)]);
    await one.engine.loadWeights(tinyWeights(conformingModel, 2, 1));
    const [changed, kept] = await Promise.all([one, other].map(({ engine }) => engine.generate(prompts, sampling)));
    expect(changed?.map(({ policyVersion }) => policyVersion)).toEqual([1, 1, 1]);
    expect(kept?.map(({ policyVersion }) => policyVersion)).toEqual([0, 0, 0]);
    expect(kept?.map(({ logprobs }) => logprobs)).not.toEqual(changed?.map(({ logprobs }) => logprobs));
  });

  test("LSV1 another program that answers at its port is not taken for it: it starts once more, at another", async () => {
    const marker = join(folder, `marker-${kind}`);
    const { engine, lines } = await launch(kind, doing({ is: "elsewhere", marker }));
    expect(existsSync(marker)).toBe(true);
    expect(lines.filter((line) => line.includes("starts"))).toHaveLength(2);
    expect(await engine.generate(prompts, sampling)).toHaveLength(3);
  });

  test("one that is slow is waited for; one that ends is told at once, with its last words; one that is mute, at its deadline", async () => {
    await launch(kind, doing({ lateMs: 1_500 }));
    const startMs = performance.now();
    await expect(launch(kind, doing({ dies: "no kernel image" }))).rejects.toMatchObject({
      code: "service.failed",
      message: expect.stringMatching(
        /ended before it answered: it ended with code 1; it said last: .*no kernel image/s,
      ),
    });
    expect(performance.now() - startMs).toBeLessThan(60_000);
    await expect(launch(kind, doing({ is: "mute" }, { startTimeoutMs: 3_000 }))).rejects.toMatchObject({
      code: "service.failed",
      message: expect.stringMatching(/within 3000 ms, and it said .*; raise engine\.launch\.startTimeoutMs$/s),
    });
  });

  test("arguments of one's own reach it; what it does not know it says, and what is Treadle's is refused", async () => {
    await launch(kind, {
      arguments: [kind === "vllm" ? "--gpu-memory-utilization=0.5" : "--mem-fraction-static=0.5"].flatMap((word) =>
        word.split("="),
      ),
    });
    await expect(launch(kind, { arguments: ["--no-such-flag"] })).rejects.toThrow(
      /unrecognized arguments: --no-such-flag/,
    );
    for (const word of ["--host=0.0.0.0", "--served_model_name"])
      await expect(launch(kind, { arguments: [word] })).rejects.toMatchObject({
        code: "config.invalid",
        message: expect.stringContaining(`'${word}', which Treadle sets itself`),
      });
  });

  test("PGR1 what the node does not allow is not started", async () => {
    const rights = { node: "a", project: "/nowhere", interpreters: [python], programs: [], variables: [] };
    vi.stubEnv("TREADLE_PROGRAM_RIGHTS", JSON.stringify(rights));
    const refused = { code: "node.forbidden" };
    await expect(launch(kind, { arguments: ["--trust-remote-code"] })).rejects.toMatchObject(refused);
    await expect(launch(kind, { python: undefined, command: ["sh"] })).rejects.toMatchObject(refused);
    await expect(launch(kind, doing({}))).rejects.toMatchObject(refused);
    await launch(kind);
    vi.unstubAllEnvs();
  });
});

test("a program that is not there, a Python without the server, and a model without a folder are named", async () => {
  const missing = {
    code: "config.invalid",
    message: expect.stringMatching(
      /'no-such-python', which engine\.launch\.python names.*cannot be started; run 'python3 -m venv vllm && vllm\/bin\/pip install vllm'/,
    ),
  };
  await expect(launch("vllm", { python: "no-such-python" })).rejects.toMatchObject(missing);
  await expect(launch("sglang", { python: "python3" })).rejects.toMatchObject({
    code: "config.invalid",
    message: expect.stringMatching(
      /'python3', which engine\.launch\.python names for SGLang, has no module 'sglang'.*pip install sglang/,
    ),
  });
  await expect(launch("vllm", {}, { model: join(folder, "none") })).rejects.toMatchObject({ code: "config.invalid" });
});

test.each([
  [{}, /'url'.*or 'launch'/],
  [{ url: "http://127.0.0.1:1", launch: { python: "python3" } }, /and not both/],
  [{ launch: {} }, /'python' or 'command'/],
  [{ launch: { python: "a", command: ["b"] } }, /'python' or 'command'/],
  [{ launch: { python: "a" }, apiKeyVariable: "KEY" }, /has a key of its own/],
] as const)("a configuration that says no one server is refused: %j", async (given, message) => {
  const config = { kind: "vllm", model: tiny, ...given };
  await expect(ServerEngine.create(model, config as never)).rejects.toMatchObject({
    code: "config.invalid",
    message: expect.stringMatching(message),
  });
});

test("PRG1 a server whose owner is killed ends with it", async () => {
  const program = fileURLToPath(new URL("support/holds-a-server.ts", import.meta.url));
  const holder = spawn(process.execPath, ["--import", "tsx", "--conditions=source", program, python, tiny], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  await new Promise((ready) => holder.stdout.once("data", ready));
  expect(serversOf(`double-core-of-${tiny}`)).toHaveLength(1);
  holder.kill("SIGKILL");
  await eventually(() => serversOf(tiny).length === 0);
});
