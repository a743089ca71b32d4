import { numAdapters, type ServerLauncher, streamInterval } from "../server/server-launch.ts";

/** Arguments as SGLang 0.5.23 has them. It takes its key from its arguments alone, or from a file of settings. */
export const sglangLauncher: ServerLauncher = {
  name: "SGLang",
  module: "sglang.launch_server",
  distributions: ["sglang"],
  own: [
    "--host",
    "--port",
    "--api-key",
    "--admin-api-key",
    "--model-path",
    "--model",
    "--served-model-name",
    "--config",
  ],
  words: ({ model, name, port, keyFile, contextLength, numDevices, dtype, ...request }) => ({
    args: [
      ...["--dtype", dtype, "--context-length", `${contextLength}`, "--tensor-parallel-size", `${numDevices}`],
      ...["--log-level-http", "warning", "--incremental-streaming-output", "--stream-interval", streamInterval],
      ...(request.isDeterministic ? ["--enable-deterministic-inference"] : []),
      ...(request.sharesDevices ? ["--enable-memory-saver"] : []),
      ...(request.adapters
        ? [
            ...["--enable-lora", "--max-loaded-loras", numAdapters, "--max-loras-per-batch", numAdapters],
            ...["--max-lora-rank", `${request.adapters.rank}`, "--lora-target-modules", ...request.adapters.targets],
          ]
        : []),
    ],
    fixedArgs: [
      ...["--config", keyFile, "--model-path", model, "--served-model-name", name],
      ...["--host", "127.0.0.1", "--port", `${port}`],
    ],
    // Else whoever asks how it is makes it generate, also while its memory is released.
    environment: { SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION: "false" },
    fixedEnvironment: { SGLANG_RETURN_ORIGINAL_LOGPROB: "false" },
  }),
};
