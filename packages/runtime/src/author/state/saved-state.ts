/**
 * A saved state on disk: `<folder>/manifest.json`, and `<folder>/rank-<n>/<name>` for each file. Ranks write beside its place,
 * the runner writes the manifest and renames the folder.
 *
 * MF1 a folder in its place is whole: its files, its manifest and its name are synced, in this order.
 * MF2 nothing of a state is used unless its manifest names it with its size and checksum; and what it names is there.
 */
import { createHash } from "node:crypto";
import { type FileHandle, mkdir, open, readdir, readFile, rename, rm, stat } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { type StateFile, StateManifest, TreadleError } from "@treadle/contracts";
import { guardDisk } from "../guard-disk.ts";
import { pieceBytes } from "./part-writer.ts";

const manifestName = "manifest.json";
const maxManifestBytes = 64 * 2 ** 20;
const rankFolder = (rank: number): string => `rank-${rank}`;
const remedy =
  "use an older one from the run's checkpoints folder with 'treadle resume --checkpoint', or bring the file back";

/** Beside the place of a state that is being written. */
const partial = ".partial";

/** Where a rank writes its part. */
export const partBeside = (folder: string, rank: number): string => join(`${folder}${partial}`, rankFolder(rank));

/** Where a file of a state is. */
export const fileOf = (folder: string, rank: number, name: string): string => join(folder, rankFolder(rank), name);

/** What a state's folder has, relative to it. */
export const namesIn = ({ ranks }: StateManifest): string[] => [
  manifestName,
  ...ranks.flatMap((files, rank) => files.map(({ name }) => `${rankFolder(rank)}/${name}`)),
];

/** Puts a state whose parts are written in its place (MF1). Rejects with `disk.full`. */
export async function completeState(folder: string, manifest: StateManifest): Promise<void> {
  const beside = `${folder}${partial}`;
  const sound = StateManifest.parse(manifest);
  await guardDisk(folder, async () => {
    for (const [rank, files] of sound.ranks.entries()) {
      const part = join(beside, rankFolder(rank));
      // A process that died has begun it before, and may have had others.
      const names: string[] = await readdir(part).catch(() => []);
      for (const name of names.filter((each) => !files.some((file) => file.name === each))) {
        await rm(join(part, name), { recursive: true });
      }
      if (files.length > 0) await syncFolder(part);
    }
    await mkdir(beside, { recursive: true, mode: 0o700 });
    const file = await open(join(beside, manifestName), "w", 0o600);
    try {
      await file.appendFile(manifestText(sound));
      await file.datasync();
    } finally {
      await file.close();
    }
    await syncFolder(beside);
    await rm(folder, { recursive: true, force: true });
    await rename(beside, folder);
    await syncFolder(dirname(folder));
  });
}

/**
 * The manifest of a state, once everything that it names is there in its size, and nothing else is (MF2). Throws
 * `checkpoint.missing` or `checkpoint.corrupt`.
 */
export async function openState(folder: string): Promise<StateManifest> {
  const found = await stat(folder).catch((cause) => {
    throw new TreadleError("checkpoint.missing", `state '${folder}' is not there; ${remedy}`, {
      cause,
      details: { path: folder },
    });
  });
  if (!found.isDirectory()) {
    throw new TreadleError(
      "checkpoint.corrupt",
      `state '${folder}' is a single file, where this version of Treadle expects a folder with '${manifestName}'; resume the run with the version that wrote it, or start a new one`,
      { details: { path: folder } },
    );
  }
  const manifest = await readManifest(folder);
  const expected = new Set([manifestName, ...manifest.ranks.map((_, rank) => rankFolder(rank))]);
  const others = (await readdir(folder)).filter((name) => !expected.has(name));
  if (others[0] !== undefined) throw extra(folder, others[0]);
  for (const [rank, files] of manifest.ranks.entries()) await checkPart(folder, rank, files);
  return manifest;
}

async function readManifest(folder: string): Promise<StateManifest> {
  const path = join(folder, manifestName);
  const refuse = (what: string, cause?: unknown): TreadleError =>
    new TreadleError("checkpoint.corrupt", `state '${folder}' is damaged: '${manifestName}' ${what}; ${remedy}`, {
      cause,
      details: { path, file: manifestName },
    });
  const { size } = await stat(path).catch((cause) => {
    throw refuse("is missing", cause);
  });
  if (size > maxManifestBytes) throw refuse(`has '${size}' bytes where at most ${maxManifestBytes} are allowed`);
  const text = await readFile(path, "utf8");
  let checksum: unknown;
  let manifest: StateManifest;
  try {
    const { sha256, ...rest } = JSON.parse(text) as { sha256?: unknown };
    checksum = sha256;
    manifest = StateManifest.parse(rest);
  } catch (cause) {
    throw refuse("cannot be read", cause);
  }
  const found = checksumOf(manifest);
  if (checksum !== found) throw refuse(`has checksum '${found}' where it says '${String(checksum)}'`);
  return manifest;
}

async function checkPart(folder: string, rank: number, files: readonly StateFile[]): Promise<void> {
  const names: string[] = await readdir(join(folder, rankFolder(rank))).catch(() => []);
  for (const { name, sizeBytes } of files) {
    if (!names.includes(name)) throw damaged(folder, rank, name, `'${sizeBytes}' bytes`, "no file");
    const found = await stat(fileOf(folder, rank, name));
    if (found.size !== sizeBytes) throw damaged(folder, rank, name, `'${sizeBytes}' bytes`, `'${found.size}'`);
  }
  const unknown = names.find((name) => !files.some((file) => file.name === name));
  if (unknown !== undefined) throw extra(folder, join(rankFolder(rank), unknown));
}

/** Reads a file of `sizeBytes` to its end; rejects with `checkpoint.corrupt` after the last piece when it is another. */
export async function* checkedPieces(path: string, told: { folder: string; rank: number; file: StateFile }) {
  const { folder, rank, file } = told;
  const { name, sizeBytes, sha256 } = file;
  const handle: FileHandle = await open(path).catch((cause) => {
    throw damaged(folder, rank, name, `'${sizeBytes}' bytes`, `no file: ${(cause as Error).message}`);
  });
  const hash = createHash("sha256");
  let position = 0;
  try {
    while (position < sizeBytes) {
      const piece = Buffer.allocUnsafe(Math.min(pieceBytes, sizeBytes - position));
      const { bytesRead } = await handle.read(piece, 0, piece.byteLength, position);
      if (bytesRead === 0) throw damaged(folder, rank, name, `'${sizeBytes}' bytes`, `'${position}'`);
      position += bytesRead;
      hash.update(piece.subarray(0, bytesRead));
      yield piece.subarray(0, bytesRead);
    }
  } finally {
    await handle.close();
  }
  const found = hash.digest("hex");
  if (found !== sha256) throw damaged(folder, rank, name, `SHA-256 '${sha256}'`, `'${found}'`);
}

/** A state with another content than its manifest says. */
function damaged(folder: string, rank: number, file: string, expected: string, found: string): TreadleError {
  return new TreadleError(
    "checkpoint.corrupt",
    `state '${folder}' is damaged: file '${file}' of rank ${rank} has ${found} where its manifest expects ${expected}; ${remedy}`,
    { details: { path: fileOf(folder, rank, file), file, rank, expected, found } },
  );
}

function extra(folder: string, name: string): TreadleError {
  return new TreadleError(
    "checkpoint.corrupt",
    `state '${folder}' has '${name}', which its manifest does not name: somebody has changed it; remove that file if you trust the others, or ${remedy}`,
    { details: { path: join(folder, name), file: basename(name) } },
  );
}

const checksumOf = (manifest: StateManifest): string =>
  createHash("sha256").update(JSON.stringify(manifest)).digest("hex");

/** What is in the manifest's file. */
export const manifestText = (manifest: StateManifest): string =>
  `${JSON.stringify({ ...manifest, sha256: checksumOf(manifest) }, null, 2)}\n`;

/** Makes the names in a folder survive a crash of the machine. */
async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}
