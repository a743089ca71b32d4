import { isLoopback, TreadleError } from "@treadle/contracts";
import { checkVariables } from "@treadle/contracts/program-rights";
import { z } from "zod";
import { StreamMs, TorchConfig } from "../torch/torch-config.ts";
import { LaunchSettings } from "./server-launch.ts";

/** Of an inference server, whatever its kind: one that runs already, or one that Treadle starts. Each engine has a server of its own. */
const ServerSettings = z.strictObject({
  /** where a server listens that runs already, or one address for each rank; a rank loads weights into its server and ends what others compute there */
  url: z.union([z.url({ protocol: /^https?$/ }), z.array(z.url({ protocol: /^https?$/ })).min(1)]).optional(),
  /** how each rank starts a server of its own, on its own devices, which ends with the rank */
  launch: LaunchSettings.optional(),
  /** local folder of the Hugging Face model that the server serves, and that is trained; the server reads it, too */
  model: z.string().min(1),
  /** name of the environment variable with the server's key, which goes with each call */
  apiKeyVariable: z.string().min(1).optional(),
  /** also addresses beyond this machine; the folders of `model` and `weightsFolder` are then shared with the server */
  allowRemote: z.boolean().default(false),
  /** where new weights are written for the server to read, under the same path; default: the folder for temporary files */
  weightsFolder: z.string().min(1).optional(),
  /** MiB that the server takes on devices that other components use in turn; it then gives them back between its uses. Default: its devices are its own */
  sharedMemoryMiB: z.number().positive().optional(),
  /** most completions that the server is asked for at once; others wait */
  maxRunning: z.int().positive().default(256),
  /** of one call that generates and loads nothing */
  callTimeoutMs: z.int().positive().default(60_000),
  /** of one completion, or of each of its turns */
  completionTimeoutMs: z.int().positive().default(3_600_000),
  /**
   * milliseconds between two times at which completions that go on are kept with what they have so far; where the server dies, they go on
   * there. `never`: they begin again. SGLang does so only with `--incremental-streaming-output`
   */
  streamMs: StreamMs.default(200),
  /** within which the server has read a folder of weights */
  updateTimeoutMs: z.int().positive().default(600_000),
  /**
   * what the server gets of adapters that `trainer.lora` trains: `weights`, whole ones, with the adapter merged in; `adapter`, the adapter
   * alone, over the weights in `model`, which is little to read, and for which the server must have been started
   */
  loads: z.enum(["weights", "adapter"]).default("weights"),
  /** what trains `model`, since the server only generates; default: PyTorch as it comes. It shares its process with nobody */
  trainer: TorchConfig.omit({ path: true, randomWeights: true, process: true, streamMs: true }).prefault({
    kind: "torch",
  }),
});

type Choice = Pick<z.infer<typeof ServerSettings>, "url" | "launch" | "apiKeyVariable" | "allowRemote">;
const isOne = ({ url, launch }: Choice): boolean => (url === undefined) !== (launch === undefined);
const oneOf = { error: "give 'url', of a server that runs already, or 'launch', and not both" };
const fitsLaunch = ({ launch, apiKeyVariable, allowRemote }: Choice): boolean =>
  launch === undefined || (apiKeyVariable === undefined && !allowRemote);
const ofUrl = {
  error:
    "'apiKeyVariable' and 'allowRemote' are for 'url'; leave them out, as a server of 'launch' has a key of its own",
};

/** A model that SGLang serves. */
export const SglangConfig = ServerSettings.extend({ kind: z.literal("sglang") })
  .refine(isOne, oneOf)
  .refine(fitsLaunch, ofUrl);
export type SglangConfig = z.infer<typeof SglangConfig>;

/** A model that vLLM serves. */
export const VllmConfig = ServerSettings.extend({ kind: z.literal("vllm") })
  .refine(isOne, oneOf)
  .refine(fitsLaunch, ofUrl);
export type VllmConfig = z.infer<typeof VllmConfig>;

export type ServerConfig = SglangConfig | VllmConfig;

/** The address of a rank's own server. Throws `config.invalid` where there is none, or it is beyond this machine unasked. */
export function urlOf({ url, allowRemote }: ServerConfig, rank: number): string {
  const urls = url === undefined ? [] : typeof url === "string" ? [url] : url;
  const own = urls[rank];
  if (own === undefined) {
    throw new TreadleError(
      "config.invalid",
      `engine.url has '${urls.length}' addresses and rank '${rank}' needs one of its own; list one for each rank, or lower the component's ranks`,
    );
  }
  if (!allowRemote && !isLoopback(new URL(own).hostname)) {
    throw new TreadleError(
      "config.invalid",
      `engine.url '${own}' is beyond this machine; use a loopback address, or set engine.allowRemote where the network is trusted`,
    );
  }
  return own;
}

/** Throws `config.invalid` where the variable is not set, and `node.forbidden` where this process may not read it (PGR1). */
export function apiKeyOf({ apiKeyVariable }: ServerConfig): string | undefined {
  if (apiKeyVariable === undefined) return undefined;
  checkVariables([apiKeyVariable], "engine.apiKeyVariable");
  const key = process.env[apiKeyVariable];
  if (key) return key;
  throw new TreadleError(
    "config.invalid",
    `engine.apiKeyVariable names '${apiKeyVariable}', which is not set; export the server's key under that name`,
  );
}
