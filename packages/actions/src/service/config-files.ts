/** The files that a configuration names, relative to its folder. */
import { readFile } from "node:fs/promises";
import { resolve } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { choiceIn, type DriverChoice } from "../drivers/open-driver.ts";
import { ElasticityProfile } from "../elasticity/elasticity-profile.ts";
import type { StoredCurve } from "../formulation/action-history.ts";
import type { ResourceManager } from "../managers/manager.ts";
import type { UpstreamModel } from "../openai/upstream.ts";
import type { ActionServiceConfig } from "./service-config.ts";

export type ConfigFiles = ReturnType<typeof filesIn>;

/** What it returns throws `config.invalid`, with the key that names the file. */
export function filesIn(folder: string) {
  const read = (path: string, key: string): Promise<Buffer> =>
    readFile(resolve(folder, path)).catch((cause: Error) => {
      throw new TreadleError("config.invalid", `${key}: '${path}' cannot be read: ${cause.message}`, { cause });
    });
  const certificates = async (tls: ActionServiceConfig["tls"]) =>
    tls && {
      key: await read(tls.key, "tls.key"),
      certificate: await read(tls.certificate, "tls.certificate"),
      clientAuthority:
        tls.clientAuthority === undefined ? undefined : await read(tls.clientAuthority, "tls.clientAuthority"),
    };
  const choice = <Choice extends DriverChoice>(config: Choice): Choice => choiceIn(folder, config);
  return { read, certificates, choice };
}

/** By kind. Throws `config.invalid` for what is no profile, and for two of one kind. */
export async function profilesIn(
  files: ConfigFiles,
  paths: readonly string[],
  resource: string | undefined,
): Promise<ReadonlyMap<string, StoredCurve>> {
  const stored = new Map<string, StoredCurve>();
  const pathOf = new Map<string, string>();
  for (const [i, path] of paths.entries()) {
    const key = `profiles.${i}`;
    const { kind, elasticity, duration, samples } = profileOf((await files.read(path, key)).toString(), path, key);
    if (stored.has(kind))
      throw new TreadleError(
        "config.invalid",
        `${key}: '${path}' is of kind '${kind}', as '${pathOf.get(kind)}' is; name one of them, or give one another kind`,
      );
    pathOf.set(kind, path);
    // On one unit, one is worth one: whoever measured more of them may still be given it.
    const points = elasticity.points[0]!.units === 1 ? [] : [{ units: 1, efficiency: 1 }];
    const table = { ...elasticity, points: [...points, ...elasticity.points] };
    const units = { min: 1, max: samples.at(-1)!.units };
    if (resource !== undefined) stored.set(kind, { elasticity: table, duration, resource, units });
  }
  return stored;
}

function profileOf(text: string, path: string, key: string): ElasticityProfile {
  const remedy = "measure it with 'treadle actions profile'";
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new TreadleError("config.invalid", `${key}: '${path}' is no JSON: ${(cause as Error).message}; ${remedy}`, {
      cause,
    });
  }
  const parsed = ElasticityProfile.safeParse(value);
  if (parsed.success) return parsed.data;
  const problems = parsed.error.issues.map((issue) => `${issue.path.join(".") || "all of it"}: ${issue.message}`);
  throw new TreadleError("config.invalid", `${key}: '${path}' is no profile: ${problems.join(", ")}; ${remedy}`);
}

/** With their keys. Throws `config.invalid` where a file cannot be read, or a request takes more than its quota ever gives. */
export async function upstreamsIn(
  files: ConfigFiles,
  { openai }: ActionServiceConfig,
  managers: readonly ResourceManager[],
): Promise<readonly UpstreamModel[]> {
  const all: UpstreamModel[] = [];
  for (const [i, { keyFile, authority, models, ...upstream }] of openai?.upstreams.entries() ?? []) {
    const at = `openai.upstreams.${i}`;
    const { quota, units } = upstream;
    const { capacity = 0 } = managers.find(({ resource }) => resource === quota) ?? {};
    if (units > capacity)
      throw new TreadleError(
        "config.invalid",
        `${at}.units: '${units}' is more than the quota '${quota}' ever gives, which is ${capacity}; ask for less`,
      );
    const key = keyFile === undefined ? undefined : await tokenIn(files, keyFile, `${at}.keyFile`);
    const certificate = authority === undefined ? undefined : await files.read(authority, `${at}.authority`);
    for (const [name, upstreamName] of Object.entries(models))
      all.push({ ...upstream, name, upstreamName, key, authority: certificate });
  }
  return all;
}

/** Throws `config.invalid` for one that is empty. */
export async function tokenIn(files: ConfigFiles, path: string, key: string): Promise<string> {
  const token = (await files.read(path, key)).toString().trim();
  if (/^[\x20-\x7e]+$/.test(token)) return token;
  if (token !== "")
    throw new TreadleError(
      "config.invalid",
      `${key}: '${path}' has other than printable ASCII in one line; write such a secret to it`,
    );
  throw new TreadleError("config.invalid", `${key}: '${path}' is empty; write a secret of its own to it`);
}
