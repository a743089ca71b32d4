/** `treadle plan --model`: a workflow that was profiled here, on devices that nobody has measured. */
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { type ModelWork, type Profile, TreadleError } from "@treadle/contracts";
import {
  calibrationOf,
  deviceNames,
  type ModelComponent,
  modelShapeOf,
  type Rehearsal,
  type RehearsalSetting,
  rehearse,
} from "@treadle/planner";
import { readProfile } from "@treadle/runtime/runner";
import type { Command } from "commander";
import { z } from "zod";
import { realNumber, wholeNumber } from "./number-flags.ts";

export type RehearsalFlags = {
  readonly model?: string;
  readonly device?: string;
  readonly promptTokens: string;
  readonly responseTokens: string;
  readonly maxTokens: string;
  readonly lengthSpread: string;
  readonly samples?: string;
  readonly calibrate?: string;
};

/** What was estimated, and for what. */
export type Rehearsed = { readonly rehearsal: Rehearsal; readonly setting: RehearsalSetting };

/** Estimates on clusters of one kind of device. */
export type Rehearser = {
  readonly device: string;
  readonly at: (target: Pick<RehearsalSetting, "devices" | "batch" | "ways">) => Rehearsed;
};

/** What the runner says of a launched component. */
type Launched = {
  readonly name: string;
  readonly config: unknown;
  readonly options: { readonly devicesPerRank?: number | undefined };
  readonly workerClass: { readonly modelWork: ModelWork | undefined };
};

/** What shipped workers are told of the work on each item; what others mean by such keys is not known. */
const count = z.int().positive().optional().catch(undefined);
const WorkConfig = z
  .looseObject({ groupSize: count, epochs: count })
  .catch({ groupSize: undefined, epochs: undefined });

const mostTokens = 2 ** 24;

export const withRehearsal = (command: Command): Command =>
  command
    .option(
      "--model <config.json>",
      "estimates components that run a model by its Hugging Face configuration, for --device",
    )
    .option("--device <name>", `estimates for devices of this kind, by published figures: ${deviceNames.join(", ")}`)
    .option("--prompt-tokens <number>", "of a prompt, for estimates", "1024")
    .option("--response-tokens <number>", "of a response, the median, for estimates", "4096")
    .option(
      "--length-spread <number>",
      "standard deviation of the logarithm of responses' lengths, for estimates",
      "0.8",
    )
    .option("--max-tokens <number>", "where responses end, for estimates", "32768")
    .option("--samples <number>", "responses to each prompt, for estimates (default: the workflow's groupSize)")
    .option(
      "--calibrate <profile>",
      "corrects estimates by this profile, measured with that model and device (default: the newest kept one that says so)",
    );

/** `kept`: profiles, of which one may correct the estimates. Undefined where nothing is to be rehearsed. Throws `config.invalid` for flags that need each other, `problem.invalid` for numbers. */
export function rehearsalOf(
  flags: RehearsalFlags,
  profile: Profile,
  launched: readonly Launched[],
  createdAt: string,
  kept: readonly Profile[] = [],
): Rehearser | undefined {
  const { model, device, calibrate } = flags;
  if (model === undefined && device === undefined) {
    if (calibrate === undefined) return undefined;
    throw new TreadleError("config.invalid", "--calibrate corrects estimates; give --model and --device, too");
  }
  if (model === undefined || device === undefined) {
    const [given, missing] = model === undefined ? ["--device", "--model"] : ["--model", "--device"];
    throw new TreadleError("config.invalid", `${given} needs ${missing}, too: estimates are made by both`);
  }
  const shape = modelShapeOf(readModel(model), model);
  const models = launched.flatMap(({ name, config, options, workerClass: { modelWork } }) => {
    if (modelWork === undefined) return [];
    const { groupSize, epochs } = WorkConfig.parse(config);
    return [{ groupSize, component: { name, work: modelWork, devicesPerRank: options.devicesPerRank, epochs } }];
  });
  const components = models.map(({ component }): ModelComponent => component);
  if (components.length === 0) {
    throw new TreadleError(
      "config.invalid",
      "no component of this workflow says that it runs a model ('static modelWork' of its class), so nothing can be estimated",
    );
  }
  const groupSize = models.find((each) => each.groupSize !== undefined)?.groupSize ?? 1;
  const tokens = (flag: string, text: string): number => wholeNumber(flag, text, { least: 1, most: mostTokens });
  const lengths = {
    promptTokens: tokens("--prompt-tokens", flags.promptTokens),
    responseTokens: tokens("--response-tokens", flags.responseTokens),
    maxResponseTokens: tokens("--max-tokens", flags.maxTokens),
    spread: realNumber("--length-spread", flags.lengthSpread, { least: 0 }),
  };
  const samples = flags.samples === undefined ? groupSize : tokens("--samples", flags.samples);
  const { workflow } = profile;
  const calibration =
    calibrate === undefined
      ? calibrationOf([profile, ...kept], { workflow, device, shape })
      : { profile: readProfile(resolve(calibrate), workflow), isAsked: true };
  return {
    device,
    at: (target) => {
      const setting = { ...target, device, samples, shape, lengths, components, calibration, createdAt };
      return { rehearsal: rehearse(profile, setting), setting };
    },
  };
}

function readModel(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch (error) {
    throw new TreadleError(
      "config.invalid",
      `--model '${path}' cannot be read: ${(error as Error).message}; give the config.json of a Hugging Face model`,
      { cause: error },
    );
  }
}
