/** Profiles on disk: one readable file a workflow, below the project root, and what its key is made of. */
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, statSync } from "node:fs";
import { cpus } from "node:os";
import { basename, dirname, isAbsolute, join, relative, resolve, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { type DeviceSpec, type ModelSizes, Profile, TreadleError, type Work } from "@treadle/contracts";
import { figuresNameOf, modelShapeOf, sizesOf } from "@treadle/planner";
import writeFileAtomic from "write-file-atomic";
import { z } from "zod";
import type { Component } from "./component.ts";

/**
 * Where the profile of the workflow in a folder is kept: `configured`, from the project root, or the default place. That one
 * has the folder's path from the project root in it, since folders of one name are different workflows.
 */
export function profilePath(projectRoot: string, folder: string, configured?: string): string {
  if (configured !== undefined) return resolve(projectRoot, configured);
  return join(projectRoot, ".treadle", "profiles", `${placeOf(projectRoot, folder)}.json`);
}

/** Where its workers' predictors are kept, by the same rule. */
export function predictorFolder(projectRoot: string, folder: string): string {
  return join(projectRoot, ".treadle", "predictors", placeOf(projectRoot, folder));
}

function placeOf(projectRoot: string, folder: string): string {
  const path = relative(projectRoot, resolve(folder));
  const isBelow = path !== "" && path.split(sep)[0] !== ".." && !isAbsolute(path);
  const name = basename(resolve(folder));
  return isBelow ? path : join("elsewhere", `${name}-${digest(resolve(folder))}`);
}

/**
 * Throws `profile.missing` when there is none and `profile.invalid` for a file that is no profile.
 * Synchronous: placement is, and it happens once a run.
 */
export function readProfile(path: string, workflow: string): Profile {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    const why = code === "ENOENT" ? "" : ` (${code})`;
    throw new TreadleError(
      "profile.missing",
      `there is no profile of '${workflow}' at '${path}'${why}; make one with 'treadle profile' and the workflow's folder`,
    );
  }
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw invalid(path, "it is no JSON", cause);
  }
  const parsed = Profile.safeParse(json);
  if (!parsed.success) throw invalid(path, z.prettifyError(parsed.error), parsed.error);
  return parsed.data;
}

/** Where it is kept besides, so that no profile of other devices replaces it: it corrects estimates of this model and such devices. */
export function calibrationPath(path: string, { hardware, components }: Profile): string | undefined {
  const device = figuresNameOf(hardware.accelerator ?? "");
  const model = Object.values(components).find((each) => each.model !== undefined)?.model;
  if (device === undefined || model === undefined) return undefined;
  return path.replace(/(\.json)?$/, `.${device}-${digest(JSON.stringify(model))}.json`);
}

/** Of the model in a folder; undefined where this machine has no such folder, and where its sizes are not known. */
export function modelSizes(folder: string): ModelSizes | undefined {
  const path = join(folder, "config.json");
  try {
    // A pipe of that name would be waited for.
    const found = statSync(path);
    if (!found.isFile() || found.size > mostConfigBytes) return undefined;
    return sizesOf(modelShapeOf(JSON.parse(readFileSync(path, "utf8")), path));
  } catch {
    return undefined;
  }
}

const mostConfigBytes = 2 ** 20;

/** All that are kept where workflows keep theirs by default; what is none is left out. */
export function keptProfiles(projectRoot: string): Profile[] {
  const folder = join(projectRoot, ".treadle", "profiles");
  let names: string[];
  try {
    names = readdirSync(folder, { recursive: true, encoding: "utf8" });
  } catch {
    return [];
  }
  return names
    .filter((name) => name.endsWith(".json"))
    .flatMap((name) => {
      try {
        return [readProfile(join(folder, name), name)];
      } catch {
        return [];
      }
    });
}

function invalid(path: string, why: string, cause: unknown): TreadleError {
  return new TreadleError(
    "profile.invalid",
    `'${path}' is no profile: ${why}; remove it, or replace it with 'treadle profile'`,
    { cause },
  );
}

export async function writeProfile(path: string, profile: Profile): Promise<void> {
  mkdirSync(dirname(path), { recursive: true });
  await writeFileAtomic(path, `${JSON.stringify(profile, undefined, 2)}\n`);
}

/** Devices of the cluster and the processor that drives them. */
export function describeHardware(devices: readonly DeviceSpec[]): Profile["hardware"] {
  const kinds = new Map<string, { count: number; mebibytes: number }>();
  for (const { kind, memoryBytes } of devices) {
    const mebibytes = Math.round(memoryBytes / 2 ** 20);
    kinds.set(kind, { count: (kinds.get(kind)?.count ?? 0) + 1, mebibytes });
  }
  const processors = cpus();
  const described = [
    ...[...kinds].map(([kind, { count, mebibytes }]) => `${count} ${kind} of ${mebibytes} MiB`),
    `${processors.length} × ${processors[0]?.model.trim() || "unknown processor"}`,
  ].join(", ");
  // Of other machines the number of cores is not known here.
  const slots = devices.filter(({ kind, node }) => kind === "cpu" && node === devices[0]?.node).length;
  const isThisMachine = devices.every(({ id, node }) => node === devices[0]?.node && !id.includes("/"));
  const coresPerSlot = isThisMachine && slots > 0 ? { coresPerSlot: processors.length / slots } : {};
  const [accelerator, ...others] = new Set(devices.filter(({ kind }) => kind !== "cpu").map(({ name }) => name));
  const named = accelerator !== undefined && others.length === 0 ? { accelerator } : {};
  return { key: digest(described), description: described, ...named, ...coresPerSlot };
}

/** What a component's times depend on: its code, as far as that is its module's, its configuration, and how it may be laid out. */
export function componentKey(component: Component, projectRoot: string): string {
  const known = keys.get(component);
  if (known !== undefined) return known;
  const { module, exportName, config, options } = component;
  const { env: _env, memoryLimitMiB: _limit, weight: _weight, name: _name, ...layout } = options;
  const file = module.startsWith("file:") ? fileURLToPath(module) : undefined;
  const code = file === undefined ? [module] : [relative(projectRoot, file), codeOf(file)];
  const key = digest(JSON.stringify([howMeasured, ...code, exportName, config, layout]));
  keys.set(component, key);
  return key;
}

/** A run has the code that its module had when it began. */
const keys = new WeakMap<Component, string>();

function codeOf(file: string): string {
  try {
    return digest(readFileSync(file, "utf8"));
  } catch {
    return ""; // whoever loads it says why
  }
}

/** As which all runs know what a component computes: its name, the hardware's key, and its own. */
export function workOf(
  components: ReadonlyMap<string, Component>,
  name: string,
  devices: readonly DeviceSpec[],
  projectRoot: string,
): Work {
  const keys = [describeHardware(devices).key, componentKey(components.get(name) as Component, projectRoot)];
  return `${name}@${keys.map((key) => key.slice(0, 8)).join("-")}`;
}

/** Raised when observations mean something else than before, so that kept profiles are measured again: 2, streams; 3, work beside waits. */
const howMeasured = 3;

const digest = (text: string): string => createHash("sha256").update(text).digest("hex").slice(0, 16);
