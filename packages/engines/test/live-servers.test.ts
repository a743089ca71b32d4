/**
 * The contract of generation on live servers: `npm run test:vllm` starts one, or has one started, and the variables below name others, as an
 * SGLang of a model that `make_served_model.py` has made, of 7 tokens and a context of 6; skipped elsewhere.
 */
import { readdirSync, readFileSync } from "node:fs";
import { ServerEngine, TorchEngine } from "@treadle/engines";
import { expect, test } from "vitest";
import { liveLaunch, liveModel, liveUrl } from "../../../test/support/live-vllm.ts";
import { lacksTorch } from "../../../test/support/torch.ts";
import { sealWeights } from "../src/parameters.ts";
import { conformingModel } from "../src/testing/conformance.ts";
import { describeGeneration } from "./generation-contract.ts";

const model = { ...conformingModel, layers: 1, width: 8, heads: 1 };
const options = { warn: (message: string) => console.warn(message), log: (line: string) => console.log(line) };

const { TREADLE_SGLANG_URL: sglangUrl, TREADLE_SGLANG_MODEL: sglangModel } = process.env;
const servers = [
  ["vllm", "live", "TREADLE_VLLM_URL", liveModel, liveUrl && { url: liveUrl }],
  ["vllm", "live and launched", "TREADLE_VLLM_PYTHON", liveModel, liveLaunch && { launch: liveLaunch }],
  ["sglang", "live", "TREADLE_SGLANG_URL", sglangModel, sglangUrl && { url: sglangUrl }],
] as const;
for (const [kind, how, variable, folder, server] of servers) {
  const names = `${variable} and TREADLE_${kind.toUpperCase()}_MODEL name none`;
  const lacks = server && folder !== undefined ? lacksTorch() : names;
  describeGeneration(`${kind}, ${how}`, lacks, async () => {
    const torch = await TorchEngine.create(model, { kind: "torch", path: folder! });
    const own = await torch.exportWeights();
    const parameters = own.parameters.map(({ name, shape, data }) => ({ name, shape, data: data.map((x) => -2 * x) }));
    const engine = await ServerEngine.create(model, { kind, model: folder!, streamMs: 0, ...server! }, options);
    return {
      engine,
      score: (tokens, temperature) =>
        torch.logprobs({ rows: 1, columns: tokens.length, tokens, temperatures: Float32Array.of(temperature) }),
      weights: [own, sealWeights({ policyVersion: 0, parameters })],
      ...(kind === "vllm" && { drawsByRequest: true }),
      close: async () => {
        await Promise.all([engine.close(), torch.close()]);
      },
    };
  });
}

/** Of the group of a server with this model: those of vLLM change their names, and their environments with them. */
function groupOf(folder: string): { readonly pid: number; readonly name: string }[] {
  const all = readdirSync("/proc").flatMap((name) => {
    try {
      if (!/^\d+$/.test(name)) return [];
      const [state, , group] = readFileSync(`/proc/${name}/stat`, "utf8")
        .replace(/^.*\) /s, "")
        .split(" ");
      const words = readFileSync(`/proc/${name}/cmdline`, "latin1").split("\0");
      return state === "Z" ? [] : [{ pid: Number(name), group: Number(group), words }];
    } catch {
      return [];
    }
  });
  const first = all.find(({ pid, group, words }) => pid === group && words.includes(folder));
  return all.filter(({ group }) => group === first?.pid).map(({ pid, words }) => ({ pid, name: words[0]! }));
}

test.skipIf(liveLaunch === undefined || liveModel === undefined)(
  "LSV2 a live vLLM whose engine is killed is told with its last words, and leaves no process",
  async () => {
    const launch = liveLaunch!;
    const engine = await ServerEngine.create(model, { kind: "vllm", model: liveModel!, launch }, options);
    const core = groupOf(liveModel!).find(({ name }) => name.includes("EngineCore"));
    const group = groupOf(liveModel!);
    process.kill(core!.pid, "SIGKILL");
    expect(await engine.ended).toMatchObject({
      code: "service.failed",
      message: expect.stringContaining("it said last"),
    });
    const left = readdirSync("/proc").filter((name) => group.some(({ pid }) => `${pid}` === name));
    expect(left.filter((pid) => !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, "utf8")))).toEqual([]);
    await engine.close();
  },
  1_800_000,
);
