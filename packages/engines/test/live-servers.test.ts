/** The contract of generation on a live server: `npm run test:vllm` starts one; skipped elsewhere. */
import { ServerEngine, TorchEngine } from "@treadle/engines";
import { lacksTorch } from "../../../test/support/torch.ts";
import { sealWeights } from "../src/parameters.ts";
import { describeGeneration, testedModel } from "./generation-contract.ts";

const { TREADLE_VLLM_URL: url, TREADLE_VLLM_MODEL: folder } = process.env;
const lacks =
  url === undefined || folder === undefined ? "TREADLE_VLLM_URL and TREADLE_VLLM_MODEL name none" : lacksTorch();
const model = { ...testedModel, layers: 1, width: 8, heads: 1 };

describeGeneration("vllm, live", lacks, async () => {
  const torch = await TorchEngine.create(model, { kind: "torch", path: folder! });
  const own = await torch.exportWeights();
  const parameters = own.parameters.map(({ name, shape, data }) => ({ name, shape, data: data.map((x) => -2 * x) }));
  const engine = await ServerEngine.create(
    model,
    { kind: "vllm", url: url!, model: folder! },
    { warn: (message) => console.warn(message) },
  );
  return {
    engine,
    score: (tokens, temperature) =>
      torch.logprobs({ rows: 1, columns: tokens.length, tokens, temperatures: Float32Array.of(temperature) }),
    weights: [own, sealWeights({ policyVersion: 0, parameters })],
    close: async () => {
      await Promise.all([engine.close(), torch.close()]);
    },
  };
});
