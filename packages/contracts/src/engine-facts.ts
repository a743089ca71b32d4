/** What the configuration of a worker says of its engine, as far as plans depend on it. */
export type EngineFacts = {
  readonly kind: "embedded" | "emulated" | "torch" | "sglang" | "vllm" | "module";
  /** of the Hugging Face model that it runs, with its `config.json` */
  readonly modelFolder?: string | undefined;
  /** how weights leave an engine on PyTorch: in a device's memory that others map, in files that they read, or as bytes through Node */
  readonly weightsBy?: "device" | "ticket" | "bytes" | undefined;
  /** by which process group weights go between engines on PyTorch */
  readonly collective?: "off" | "gloo" | "nccl" | undefined;
  /** what an engine on PyTorch computes on; `auto`: known where it runs */
  readonly device?: "auto" | "cpu" | "cuda" | undefined;
  /** what an engine on PyTorch trains are adapters, merged into what it publishes */
  readonly trainsAdapters?: boolean | undefined;
  /** an engine on PyTorch is in one process with its trainer's, or is the trainer's, and shares its module */
  readonly sharesProcess?: boolean | undefined;
  /** where an engine on PyTorch writes these files; default: the memory of its host */
  readonly publishesIn?: string | undefined;
  /** where a server reads its weights; default: the temporary folder of its rank's host */
  readonly readsFrom?: string | undefined;
  /** a server reads the adapter alone that a trainer trains, over weights of its own */
  readonly readsAdapters?: boolean | undefined;
  /** parameters that are in no model of a server's */
  readonly valueHead?: boolean | undefined;
};
