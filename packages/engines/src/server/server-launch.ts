import { z } from "zod";
import type { LoraConfig } from "../torch/torch-config.ts";

/** Of a server that Treadle starts. Treadle adds what the engine needs of it. */
export const LaunchSettings = z
  .strictObject({
    /** interpreter of the environment of Python in which the server is installed */
    python: z.string().min(1).optional(),
    /** or a program that takes the server's own arguments, and arguments before these; `{port}`, `{model}` and `{devices}` (as 0,1) are filled in */
    command: z.array(z.string().min(1)).min(1).optional(),
    /** more of the server's own arguments, as its documentation has them */
    arguments: z.array(z.string()).default([]),
    /** variables beside those of the worker's process */
    environment: z.record(z.string(), z.string()).default({}),
    /** the same request has the same tokens, whatever runs beside it; default: where the rank has accelerators, which servers need for it */
    deterministic: z.boolean().optional(),
    /** of what it computes with; default: as the weights in `model` are */
    dtype: z.enum(["float32", "float16", "bfloat16"]).optional(),
    /** within which it answers; it reads the model, and compiles */
    startTimeoutMs: z.int().positive().default(600_000),
  })
  .refine(({ python, command }) => (python === undefined) !== (command === undefined), {
    error: "give 'python' or 'command', one of them",
  });
export type LaunchSettings = z.infer<typeof LaunchSettings>;

/** What a server is to be, in no server's words. */
export type LaunchRequest = {
  readonly model: string;
  /** by which its models are told from those of other servers */
  readonly name: string;
  readonly port: number;
  readonly apiKey: string;
  /** holds the key as a setting that SGLang reads, so that it is in no list of processes */
  readonly keyFile: string;
  readonly contextLength: number;
  readonly numDevices: number;
  readonly dtype: string;
  readonly isDeterministic: boolean;
  readonly sharesDevices: boolean;
  /** that it loads alone; undefined: none */
  readonly adapters: Pick<z.infer<typeof LoraConfig>, "rank" | "targets"> | undefined;
};

export type ServerWords = {
  /** the user's own arguments stand between: `args` may be set otherwise by them, `fixedArgs` may not */
  readonly args: readonly string[];
  readonly fixedArgs: readonly string[];
  /** likewise */
  readonly environment: Readonly<Record<string, string>>;
  readonly fixedEnvironment: Readonly<Record<string, string>>;
};

/** How servers of one kind are started. */
export type ServerLauncher = {
  readonly name: string;
  /** what `python -m` runs */
  readonly module: string;
  /** its distributions on PyPI; the first is the one to install */
  readonly distributions: readonly [string, ...string[]];
  /** arguments that are not the user's to give */
  readonly own: readonly string[];
  readonly words: (request: LaunchRequest) => ServerWords;
};

/** Most adapters that a server has at once: a new one is loaded before the one before it is dropped. */
export const numAdapters = "2";

/** Tokens of a completion that go as one event: an event a token would keep the server's front end, and this process, busy. */
export const streamInterval = "8";

/** How to get one, in an environment of its own, since servers and PyTorch's trainer need different versions of packages. */
export const installOf = ({ distributions: [name] }: Pick<ServerLauncher, "distributions">): string =>
  `python3 -m venv ${name} && ${name}/bin/pip install ${name}`;
export const pythonOf = ({ distributions: [name] }: Pick<ServerLauncher, "distributions">): string =>
  `${name}/bin/python`;
