/** The files by which engines on PyTorch hand weights on, as Node sees them. Their Python processes write, check and read them; servers get links. */
import { randomBytes } from "node:crypto";
import { existsSync } from "node:fs";
import { constants, copyFile, link, lstat, open } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import type { HostFiles, Weights, WeightTicket } from "@treadle/contracts";
import { checksumOf } from "../checksum.ts";
import { sealWeights } from "../parameters.ts";
import { piecesOf } from "../pieces.ts";
import { readTensorInfos, readTensors } from "../server/safetensors.ts";
import { refusedTicket } from "../weight-ticket.ts";
import type { TorchConfig } from "./torch-config.ts";

const openToOthers = 0o077;
export const weightsFile = "model.safetensors";
const memoryFolder = "/dev/shm";
const alone = { ownPrefix: `treadle-torch-${process.pid}-`, runPrefix: "treadle-torch-" };

export type WeightFiles = {
  /** where a process publishes; undefined where it has no place for files */
  readonly store: { readonly root: string; readonly name: string } | undefined;
  /** weights stay on the device until somebody asks for a file of them */
  readonly onDevice: boolean;
  /** where it may read what others have published: folders in `folder` whose names begin with `prefix` */
  readonly roots: readonly { readonly folder: string; readonly prefix: string }[];
};

/** Undefined where weights travel as bytes alone. */
export function weightFilesOf(
  { weightsBy, weightsFolder }: Pick<TorchConfig, "weightsBy" | "weightsFolder">,
  hostFiles: HostFiles | undefined,
): WeightFiles | undefined {
  if (weightsBy === "bytes") return undefined;
  const { ownPrefix, runPrefix } = hostFiles ?? alone;
  const memory = hostFiles?.folder ?? (existsSync(memoryFolder) ? memoryFolder : undefined);
  const own = weightsFolder === undefined ? undefined : resolve(weightsFolder);
  const root = own ?? memory;
  return {
    store: root === undefined ? undefined : { root, name: `${ownPrefix}weights-${randomBytes(4).toString("hex")}` },
    onDevice: weightsBy === "device",
    roots: [own, memory].flatMap((folder) => (folder === undefined ? [] : [{ folder, prefix: runPrefix }])),
  };
}

/** Whether what it says is on a device is still there. */
export const isOnDevice = ({ store, folder }: WeightTicket): boolean => existsSync(join(store, folder, "device"));

/** On another host, the same path is absent, or another process's. */
export async function canOpen({ store, nonce }: WeightTicket, roots: WeightFiles["roots"]): Promise<boolean> {
  const isOfRun = roots.some(({ folder, prefix }) => dirname(store) === folder && basename(store).startsWith(prefix));
  if (!isOfRun) return false;
  try {
    // A pipe of that name would be waited for.
    const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
    await using file = await open(join(store, "nonce"), flags);
    const { bytesRead, buffer } = await file.read(Buffer.alloc(2 * nonce.length), 0, 2 * nonce.length, 0);
    return buffer.toString("latin1", 0, bytesRead) === nonce;
  } catch {
    return false;
  }
}

/**
 * Gives the file of these tensors a second name, in a folder, under which it stays as it is when newer weights are published; on another
 * file system it is copied. Its header is checked; its numbers are, before a server reads them. Throws `engine.weights-mismatch`, and
 * what the system says of a folder in which it cannot be made.
 */
export async function linkPublished(
  ticket: WeightTicket,
  name: string,
  tensors: WeightTicket["tensors"],
  folder: string,
): Promise<void> {
  const path = join(folder, name);
  await linkFile(ticket, name, path);
  const infos = await readTensorInfos(path).catch((error: Error) => {
    throw refusedTicket(ticket, error.message, error);
  });
  const found = [...infos].map(([each, { dtype, shape }]) => [each, dtype, shape]);
  const published = tensors.map(({ name: each, dtype, shape }) => [each, dtype, shape]);
  if (JSON.stringify(found) !== JSON.stringify(published))
    throw refusedTicket(ticket, `'${join(ticket.store, ticket.folder, name)}' has other tensors than were published`);
}

/** The same of any file beside them, whose content is not looked at. */
export async function linkFile(ticket: WeightTicket, name: string, path: string): Promise<void> {
  const source = join(ticket.store, ticket.folder, name);
  try {
    // Whoever may not write into these folders cannot put anything else in the place of what is looked at.
    for (const folder of [ticket.store, dirname(source)]) await checkOwn(ticket, folder, "folder");
    await checkOwn(ticket, source, "file");
    await link(source, path).catch(() => copyFile(source, path, constants.COPYFILE_EXCL | constants.COPYFILE_FICLONE));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
    throw refusedTicket(
      ticket,
      `'${source}' is not there any more: newer ones were published, or their engine has ended`,
    );
  }
}

/** As receivers on PyTorch ask of it (WF2). */
async function checkOwn(ticket: WeightTicket, path: string, kind: "file" | "folder"): Promise<void> {
  const found = await lstat(path);
  if (kind === "file" ? !found.isFile() : !found.isDirectory())
    throw refusedTicket(ticket, `'${path}' is a link, or no ${kind}`);
  if (found.uid !== process.getuid?.() || (found.mode & openToOthers) !== 0)
    throw refusedTicket(ticket, `'${path}' is not this user's alone`);
}

/** As bytes, checked as the ticket says. */
export async function readPublished(ticket: WeightTicket): Promise<Weights> {
  const expected = new Map(ticket.tensors.map((tensor) => [tensor.name, tensor.crc32]));
  const path = join(ticket.store, ticket.folder, weightsFile);
  const parameters = await readTensors(path, (name, bytes) => {
    let checksum = 0;
    for (const piece of piecesOf(bytes)) checksum = checksumOf(piece, checksum);
    if (checksum !== expected.get(name)) throw refusedTicket(ticket, `'${name}' in '${path}' has another checksum`);
  }).catch((error: unknown) => {
    throw refusedTicket(ticket, `'${path}' cannot be read: ${(error as Error).message}`, error);
  });
  return { ...sealWeights({ policyVersion: ticket.policyVersion, parameters }), ticketChecksum: ticket.checksum };
}
