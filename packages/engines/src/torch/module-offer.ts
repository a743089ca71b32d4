/**
 * How engines of one host find the trainer whose process and module they are to compute with: it leaves a file with the address of its
 * process, and they wait for the file of the one on their device.
 *
 * MO1 the file has the process's token: its folder is its user's alone, and whatever is anybody else's is not read.
 * MO2 on an accelerator a rank takes the trainer which has one of its own devices. On the host all of them are near: it takes one with
 *     which it shares a device name, else that of rank modulo the trainer's ranks.
 */
import { randomBytes } from "node:crypto";
import { constants, lstat, mkdir, open, readdir, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type HostFiles, TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { TransformerConfig } from "../embedded/transformer-config.ts";
import type { TorchConfig } from "./torch-config.ts";

const fileName = "offer.json";
const marker = "-shared-";
const openToOthers = 0o077;

/** A worker, as its peers find it. */
export type Rank = {
  readonly component: string;
  readonly rank: number;
  readonly worldSize: number;
  /** as the placement names them */
  readonly devices: readonly string[];
};

/** What must be equal for one module to serve both. */
const ModuleSettings = z.strictObject({
  model: TransformerConfig,
  path: z.string().optional(),
  randomWeights: z.boolean(),
  device: z.string(),
  dtype: z.string(),
  cudaGraphs: z.boolean(),
});
type ModuleSettings = z.infer<typeof ModuleSettings>;

export const ModuleOffer = z.strictObject({
  component: z.string().min(1),
  rank: z.int().nonnegative(),
  worldSize: z.int().positive(),
  devices: z.array(z.string()),
  address: z.string().startsWith("unix:/"),
  token: z.string().min(1),
  /** what the process computes on, as PyTorch names it */
  computesOn: z.string().min(1),
  settings: ModuleSettings,
});
export type ModuleOffer = z.infer<typeof ModuleOffer>;

/** Throws `config.invalid` for a configuration whose module cannot be shared. */
export function checkShared({ lora }: Pick<TorchConfig, "lora">, processes: number, generates: boolean): void {
  const refuse = (what: string, remedy: string) => {
    throw new TreadleError("config.invalid", `engine.process is 'shared', but ${what}; ${remedy}, or set it to 'own'`);
  };
  if (processes > 1)
    refuse(
      `the model is sharded over '${processes}' processes, which ${generates ? "are no one module" : "generate nothing"}`,
      "set engine.shards to 1 and placement to ranks of one device",
    );
  if (lora) refuse("engine.lora trains adapters, and what generates needs them merged in", "remove engine.lora");
}

export function requireHostFiles(hostFiles: HostFiles | undefined): HostFiles {
  if (hostFiles) return hostFiles;
  throw new TreadleError(
    "config.invalid",
    "engine.process is 'shared', but this system has no /dev/shm in which workers find each other; set it to 'own'",
  );
}

export const settingsOf = (
  model: TransformerConfig,
  { path, randomWeights, device, dtype, cudaGraphs }: TorchConfig,
): ModuleSettings => ({ model, ...(path !== undefined && { path }), randomWeights, device, dtype, cudaGraphs });

/** Leaves the file; returns what removes it. */
export async function offerModule(offer: ModuleOffer, { folder, ownPrefix }: HostFiles): Promise<() => Promise<void>> {
  const own = join(folder, `${ownPrefix.replace(/-$/, "")}${marker}${randomBytes(4).toString("hex")}`);
  await mkdir(own, { mode: 0o700 });
  const unfinished = join(own, "unfinished");
  await writeFile(unfinished, JSON.stringify(offer), { mode: 0o600, flag: "wx" });
  await rename(unfinished, join(own, fileName));
  return () => rm(own, { recursive: true, force: true });
}

/** Those of the run on this host (MO1). */
export async function moduleOffers({ folder, runPrefix }: HostFiles): Promise<ModuleOffer[]> {
  const names = (await readdir(folder)).filter((name) => name.startsWith(runPrefix) && name.includes(marker));
  const found = await Promise.all(names.map((name) => readOffer(join(folder, name)).catch(() => undefined)));
  return found.filter((offer) => offer !== undefined);
}

async function readOffer(folder: string): Promise<ModuleOffer | undefined> {
  const isOwn = ({ uid, mode }: { readonly uid: number; readonly mode: number }) =>
    uid === process.getuid?.() && (mode & openToOthers) === 0;
  const place = await lstat(folder);
  if (!place.isDirectory() || !isOwn(place)) return undefined;
  const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
  await using file = await open(join(folder, fileName), flags);
  const found = await file.stat();
  if (!found.isFile() || !isOwn(found)) return undefined;
  return ModuleOffer.parse(JSON.parse(await file.readFile("utf8")));
}

/** MO2. Pure. Throws `config.invalid` where two trainers are as near. */
export function chooseOffer(
  offers: readonly ModuleOffer[],
  { component, rank, devices }: Rank,
): ModuleOffer | undefined {
  const overlapping = offers.filter((offer) => offer.devices.some((device) => devices.includes(device)));
  const onHost = offers.filter((offer) => offer.computesOn === "cpu");
  const near = overlapping.length > 0 ? overlapping : onHost.filter((offer) => offer.rank === rank % offer.worldSize);
  const trainers = new Set(near.map((offer) => offer.component));
  if (trainers.size > 1)
    throw new TreadleError(
      "config.invalid",
      `'${component}/${rank}' cannot tell whose module it shares: ${[...trainers].map((name) => `'${name}'`).join(" and ")} train on '${devices.join(",")}'; set engine.process to 'own' of all of them but one, or place them apart`,
    );
  // Of one trainer's ranks that overlap, that of the same place in the order.
  return near.find((offer) => offer.rank === rank % offer.worldSize) ?? near[0];
}

/** Throws `config.invalid` that names what differs. */
export function checkSameModule({ settings, component }: ModuleOffer, own: ModuleSettings, to: Rank): void {
  const flat = ({ model, ...rest }: ModuleSettings) =>
    new Map<string, unknown>([
      ...Object.entries(model).map(([key, value]) => [`model.${key}`, value] as const),
      ...Object.entries(rest).map(([key, value]) => [`engine.${key}`, value] as const),
    ]);
  const [theirs, ours] = [flat(settings), flat(own)];
  for (const key of new Set([...theirs.keys(), ...ours.keys()])) {
    if (key === "model.microBatchTokens") continue; // of what trains alone
    if (theirs.get(key) === ours.get(key)) continue;
    const [a, b] = [ours.get(key), theirs.get(key)].map((value) => `'${value ?? "unset"}'`);
    throw new TreadleError(
      "config.invalid",
      `${key} of '${to.component}' is ${a} and of '${component}', whose module it shares, ${b}; make them equal, or set engine.process of '${to.component}' to 'own'`,
    );
  }
}
