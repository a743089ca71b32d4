/** The live vLLM that `npm run test:vllm` has made, for tests that are skipped elsewhere. */

const { TREADLE_VLLM_URL: url, TREADLE_VLLM_MODEL: model, TREADLE_VLLM_PYTHON: python } = process.env;

/** What vLLM needs where it computes on processors. */
export const onProcessors: Readonly<Record<string, string>> = {
  VLLM_TARGET_DEVICE: "cpu",
  VLLM_CPU_KVCACHE_SPACE: "1",
  VLLM_CPU_OMP_THREADS_BIND: "nobind",
  OMP_NUM_THREADS: "1",
  HF_HUB_OFFLINE: "1",
};

/** Folder of the model that it serves. */
export const liveModel: string | undefined = model;
/** Of one that runs. */
export const liveUrl: string | undefined = url;
/** Of one that Treadle starts. */
export const liveLaunch =
  python === undefined
    ? undefined
    : { python, arguments: ["--enforce-eager"], environment: onProcessors, startTimeoutMs: 20 * 60_000 };
