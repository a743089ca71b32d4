import { z } from "zod";

/** Low-rank adapters (LoRA), trained in place of the model's own weights. */
export const LoraConfig = z.strictObject({
  /** inner size of each adapter */
  rank: z.int().positive().max(1024),
  /** its effect is scaled by alpha over rank; default: twice the rank */
  alpha: z.number().positive().optional(),
  /** the matrices that are adapted, by the last part of their names; default: all of attention and MLP in the Llama and Qwen families */
  targets: z
    .array(z.string().regex(/^[A-Za-z_]\w*$/, "must be the name of a module, as q_proj"))
    .min(1)
    .default(["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
});

/** Milliseconds between two times at which completions that go on are told; `never`: an engine that dies leaves nothing of them. */
export const StreamMs = z.union([z.int().nonnegative().max(600_000), z.literal("never")]);
export type StreamMs = z.infer<typeof StreamMs>;

/** A model on PyTorch, in a Python process of its own, or of its trainer. */
export const TorchConfig = z.strictObject({
  kind: z.literal("torch"),
  /** folder of a Hugging Face model with weights in safetensors; default: a Qwen3 of the sizes in `model`, with random weights */
  path: z.string().min(1).optional(),
  /** with `path`, reads `config.json` alone, and draws the weights by `model.seed`: to try sizes without files of weights */
  randomWeights: z.boolean().default(false),
  /** interpreter with `treadle_torch`; default: the environment's TREADLE_PYTHON, else python3 */
  python: z.string().min(1).optional(),
  /** `cuda`, one device of this process's; `auto`: cuda where PyTorch finds one */
  device: z.enum(["auto", "cpu", "cuda"]).default("auto"),
  /** of passes and of the cache; what is trained is in float32 either way */
  dtype: z.enum(["float32", "bfloat16"]).default("float32"),
  /** makes activations again in the backward pass, which saves memory and costs a third of a pass */
  checkpointActivations: z.boolean().default(false),
  /** compiles each block of the training passes, by torch.compile; needs a C compiler */
  compile: z.boolean().default(false),
  /** processes over which the model of a rank that trains or scores is sharded, each on a device of its own: a number, or `auto`, one for each accelerator that the rank has */
  shards: z.union([z.literal("auto"), z.int().positive().max(1024)]).default("auto"),
  /** adapters that trainers train in place of the model's own weights: gradients and moments take a small part of the memory. Whoever gets weights gets whole ones, with the adapters merged in */
  lora: LoraConfig.optional(),
  /** replays recorded steps of generation, on CUDA alone */
  cudaGraphs: z.boolean().default(false),
  /** `shared`: what samples and scores on a trainer's device computes in its process, with the module that it trains, and has no weights of its own. Of the trainer and of those that share it, with equal settings else; no adapters, and one process */
  process: z.enum(["own", "shared"]).default("own"),
  /** how weights reach engines on PyTorch and servers: `device`, in the memory of a CUDA device that both compute on, where there is room, else as `ticket`; `ticket`, as files that they read, where they can; `bytes`, always through Node */
  weightsBy: z.enum(["device", "ticket", "bytes"]).default("device"),
  /** where those files are written; a folder on a file system that nodes share serves engines of other nodes, too. Default: the host's memory, at /dev/shm, where there is room */
  weightsFolder: z.string().min(1).optional(),
  /** a process group over which trainers send the files of their weights to engines on PyTorch, once both have set it: `gloo`, between hosts, or `nccl`, between CUDA devices. It goes before files that both see, and has neither encryption nor signatures */
  collective: z.enum(["off", "gloo", "nccl"]).default("off"),
  /** for which each side of such a group waits for the other: to come, and for each bucket */
  collectiveTimeoutMs: z.int().positive().default(60_000),
  /** of PyTorch's products; processes that share cores want one each */
  threads: z.int().positive().default(1),
  /** within which the process answers first; it imports PyTorch and reads the model */
  startTimeoutMs: z.int().positive().default(300_000),
  /** of one call but generation, which lasts as long as its completions do */
  callTimeoutMs: z.int().positive().default(600_000),
  /** how often the process tells what the completions of a rollout have so far, so that they go on from there where it dies; 0 is after each token; `never`: they begin again. Of what samples in a process of its own */
  streamMs: StreamMs.default(200),
  /** a process that answers no health check for so long while a call waits for it counts as frozen: it is ended, and its worker starts again. A slow one answers them beside its work */
  healthTimeoutMs: z.int().positive().default(60_000),
});
export type TorchConfig = z.infer<typeof TorchConfig>;
