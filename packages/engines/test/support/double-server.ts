/**
 * The doubles as a program that is started as the real servers are: `-m MODULE`, with their own flags and variables. It refuses what
 * they refuse, lacks what they lack without a flag, and has a process below it, as their engines are. What a test wants of it stands
 * in TREADLE_DOUBLE.
 */
import { spawn } from "node:child_process";
import { existsSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type DoubleOptions, type ServerDouble, SglangDouble, VllmDouble } from "@treadle/engines/testing";
import { z } from "zod";

/** `false`: a flag without a value; `true`: with one; a number: with at least so many */
type Flags = Readonly<Record<string, boolean | 1>>;

const flagsOf: Readonly<Record<"vllm" | "sglang", Flags>> = {
  vllm: {
    "--model": true,
    "--served-model-name": true,
    "--host": true,
    "--port": true,
    "--dtype": true,
    "--max-model-len": true,
    "--tensor-parallel-size": true,
    "--generation-config": true,
    "--logprobs-mode": true,
    "--stream-interval": true,
    "--max-loras": true,
    "--max-lora-rank": true,
    "--gpu-memory-utilization": true,
    "--disable-uvicorn-access-log": false,
    "--enable-scale-out": false,
    "--enable-sleep-mode": false,
    "--enable-lora": false,
  },
  sglang: {
    "--config": true,
    "--model-path": true,
    "--served-model-name": true,
    "--host": true,
    "--port": true,
    "--dtype": true,
    "--context-length": true,
    "--tensor-parallel-size": true,
    "--log-level-http": true,
    "--stream-interval": true,
    "--max-loaded-loras": true,
    "--max-loras-per-batch": true,
    "--max-lora-rank": true,
    "--mem-fraction-static": true,
    "--lora-target-modules": 1,
    "--incremental-streaming-output": false,
    "--enable-deterministic-inference": false,
    "--enable-memory-saver": false,
    "--enable-lora": false,
  },
};
const modules = { "vllm.entrypoints.openai.api_server": "vllm", "sglang.launch_server": "sglang" } as const;

/** What a test wants: an error before anything, a late start, no start, or another server in its place. */
const Wanted = z.strictObject({
  dies: z.string().optional(),
  lateMs: z.number().default(0),
  tokenMs: z.number().optional(),
  /** `mute`: it listens nowhere; `elsewhere`: it leaves its port to another program, once */
  is: z.enum(["mute", "elsewhere"]).optional(),
  /** for `elsewhere`, so that it is once */
  marker: z.string().default(""),
});

function refuse(message: string): never {
  process.stderr.write(`api_server.py: error: ${message}\n`);
  process.exit(2);
}

const given = process.argv.slice(2);
const kind = modules[given[1] as keyof typeof modules];
if (given[0] !== "-m" || kind === undefined) refuse(`No module named ${given[1]}`);
const values = new Map<string, string[]>();
for (let at = 2; at < given.length; ) {
  const flag = given[at++]!;
  const takes = flagsOf[kind][flag];
  if (takes === undefined) refuse(`unrecognized arguments: ${flag}`);
  const own: string[] = [];
  while (takes !== false && at < given.length && !given[at]!.startsWith("--") && (takes === 1 || own.length === 0))
    own.push(given[at++]!);
  if (takes !== false && own.length === 0) refuse(`argument ${flag}: expected an argument`);
  values.set(flag, own);
}
const one = (flag: string): string => values.get(flag)?.[0] ?? refuse(`the following arguments are required: ${flag}`);
const { env } = process;
const wanted = Wanted.parse(JSON.parse(env["TREADLE_DOUBLE"] ?? "{}"));
const devices = (env["CUDA_VISIBLE_DEVICES"] ?? "").split(",").filter(Boolean);
if (Number(one("--tensor-parallel-size")) !== Math.max(1, devices.length))
  refuse(`tensor parallel size ${one("--tensor-parallel-size")} with devices '${devices}'`);

const model = one(kind === "vllm" ? "--model" : "--model-path");
const longest = Number(one(kind === "vllm" ? "--max-model-len" : "--context-length"));
const { max_position_embeddings } = JSON.parse(readFileSync(join(model, "config.json"), "utf8"));
if (longest > max_position_embeddings) refuse(`${longest} is longer than max_position_embeddings`);
const common = {
  model,
  port: Number(one("--port")),
  name: one("--served-model-name"),
  contextLength: longest,
  streamInterval: Number(one("--stream-interval")),
  tokenMs: wanted.tokenMs,
};
if (one("--host") !== "127.0.0.1") refuse("tests listen on the loopback interface alone");
if (!["float32", "float16", "bfloat16"].includes(one("--dtype"))) refuse("argument --dtype: invalid choice");
const adaptersOf = (most: string) =>
  values.has("--enable-lora") ? { maxRank: Number(one("--max-lora-rank")), most: Number(one(most)) } : undefined;

function vllmOptions(): DoubleOptions {
  const isInvariant = env["VLLM_BATCH_INVARIANT"] === "1";
  if (isInvariant && devices.length === 0) refuse("VLLM_BATCH_INVARIANT needs Triton");
  const adapters = adaptersOf("--max-loras");
  if (adapters && ![1, 8, 16, 32, 64, 128, 256, 320, 512].includes(adapters.maxRank))
    refuse("argument --max-lora-rank: invalid choice");
  const development =
    "/abort_requests /pause /resume /collective_rpc /update_weight_version /weight_info /reset_prefix_cache /sleep /wake_up /weight_checker /server_info";
  return {
    ...common,
    apiKey: env["VLLM_API_KEY"],
    isRaw: one("--logprobs-mode") !== "processed_logprobs",
    isDeterministic: isInvariant,
    canRelease: values.has("--enable-sleep-mode"),
    adapters,
    without: [
      ...(values.has("--enable-scale-out") ? [] : ["/inference/v1/generate"]),
      ...(env["VLLM_SERVER_DEV_MODE"] === "1" ? [] : development.split(" ")),
      ...(env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] === "1" ? [] : ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"]),
    ],
  };
}

function sglangOptions(): DoubleOptions {
  const file = one("--config");
  if ((statSync(file).mode & 0o077) !== 0) refuse("others may read the key");
  const settings = z.strictObject({ "api-key": z.string().min(32) }).parse(JSON.parse(readFileSync(file, "utf8")));
  if (values.has("--enable-lora") && !values.has("--lora-target-modules")) refuse("no target modules");
  // As the real one does.
  process.stdout.write(`server_args=ServerArgs(model_path='${model}', api_key='${settings["api-key"]}')\n`);
  return {
    ...common,
    apiKey: settings["api-key"],
    isDeterministic: values.has("--enable-deterministic-inference"),
    isCumulative: !values.has("--incremental-streaming-output"),
    canRelease: values.has("--enable-memory-saver"),
    adapters: adaptersOf("--max-loaded-loras"),
  };
}

process.stdout.write(`INFO: a double of ${kind} starts\n`);
if (wanted.dies !== undefined) {
  process.stderr.write(`Traceback (most recent call last):\n  ValueError: ${wanted.dies}\n`);
  process.exit(1);
}
spawn(process.execPath, ["-e", "setInterval(() => {}, 1000)", `double-core-of-${model}`], { stdio: "inherit" });
await new Promise((later) => setTimeout(later, wanted.lateMs));
if (wanted.is === "mute") await new Promise(() => setInterval(() => {}, 1000));
const options = kind === "vllm" ? vllmOptions() : sglangOptions();
if (wanted.is === "elsewhere" && !existsSync(wanted.marker)) {
  writeFileSync(wanted.marker, "");
  // A server of somebody else's, which knows no key of ours; this one goes on, as it could with a port that is shared.
  await doubleOf({ ...options, apiKey: undefined, name: "another's" }).start();
} else await doubleOf(options).start();
process.stdout.write("INFO: Application startup complete.\n");

function doubleOf(options: DoubleOptions): ServerDouble {
  return kind === "vllm" ? new VllmDouble(options) : new SglangDouble(options);
}
