/**
 * The blocks of tar archives: POSIX with its extended headers and GNU's long names are read, GNU's are written, because
 * every tar knows them, also that of busybox. Pure. Names are bytes, one a character: an archive does not tell its encoding.
 */
import { TreadleError } from "@treadle/contracts";

export const blockBytes = 512;

export type EntryType = "file" | "folder" | "link" | "hard link";

export type ArchiveEntry = {
  readonly name: string;
  readonly type: EntryType;
  /** of its content, which follows in whole blocks; 0 but for a file */
  readonly size: number;
  readonly mode: number;
  readonly mtimeSeconds: number;
  /** of a link */
  readonly target: string;
};

/** A header as it stands; `x`, `g`, `L` and `K` tell of the entry that follows. */
export type Header = Omit<ArchiveEntry, "type"> & { readonly type: EntryType | "x" | "g" | "L" | "K" };

/** What an archive is refused with. */
export const refused = (why: string): TreadleError =>
  new TreadleError("action.invalid", `the archive is refused: ${why}`);

/** A name as people read it. */
export const shownName = (name: string): string => JSON.stringify(Buffer.from(name, "latin1").toString().slice(0, 200));

const types: Readonly<Record<string, Header["type"]>> = {
  "0": "file",
  "\0": "file",
  "7": "file",
  "1": "hard link",
  "2": "link",
  "5": "folder",
  x: "x",
  g: "g",
  L: "L",
  K: "K",
};
const refusedTypes: Readonly<Record<string, string>> = {
  "3": "a device",
  "4": "a device",
  "6": "a pipe",
  S: "a sparse file, which is archived without --sparse",
};

/** Undefined for a block of zeros, which ends an archive. */
export function parseHeader(block: Buffer): Header | undefined {
  if (block.every((byte) => byte === 0)) return undefined;
  let sum = 0;
  // The checksum counts itself as blanks.
  for (const [at, byte] of block.entries()) sum += at >= 148 && at < 156 ? 32 : byte;
  if (sum !== octal(block, 148, 8)) throw refused("a header's checksum is wrong: it was damaged, or is no tar archive");
  const prefix = text(block, 257, 6) === "ustar" ? text(block, 345, 155) : "";
  const name = prefix === "" ? text(block, 0, 100) : `${prefix}/${text(block, 0, 100)}`;
  const flag = String.fromCharCode(block[156]!);
  const type = types[flag];
  if (type === undefined)
    throw refused(`${shownName(name)} is ${refusedTypes[flag] ?? `of the unknown type '${flag}'`}; leave it out`);
  const isFolder = type === "folder" || (type === "file" && name.endsWith("/"));
  const hasContent = !isFolder && type !== "link" && type !== "hard link";
  const size = octal(block, 124, 12);
  if (size === undefined) throw refused(`the size of ${shownName(name)} is no octal number; a file may have 8 GiB`);
  return {
    name,
    type: isFolder ? "folder" : type,
    size: hasContent ? size : 0,
    mode: octal(block, 100, 8) ?? 0,
    mtimeSeconds: octal(block, 136, 12) ?? 0,
    target: text(block, 157, 100),
  };
}

/** With what precedes it where its names are long. */
export function headerOf({ name, type, size, mode, mtimeSeconds, target }: ArchiveEntry): Buffer {
  const flag = { file: "0", folder: "5", link: "2", "hard link": "1" }[type];
  return Buffer.concat([
    ...(target.length > 100 ? longName("K", target) : []),
    ...(name.length > 100 ? longName("L", name) : []),
    headerBlock({ name, flag, size, mode, mtimeSeconds, target }),
  ]);
}

/** After so many bytes, up to whole blocks. */
export const paddingOf = (bytes: number): number => (blockBytes - (bytes % blockBytes)) % blockBytes;

export const endOfArchive = Buffer.alloc(2 * blockBytes);

/** The records of an extended header: `length key=value`, and a line's end. */
export function parseExtended(content: Buffer): Map<string, string> {
  const fields = new Map<string, string>();
  for (let at = 0; at < content.length; ) {
    const blank = content.indexOf(0x20, at);
    const length = blank === -1 ? Number.NaN : Number(content.toString("latin1", at, blank));
    const record = content.toString("latin1", blank + 1, at + length - 1);
    const equals = record.indexOf("=");
    if (!Number.isInteger(length) || at + length > content.length || at + length <= blank || equals < 1)
      throw refused("an extended header is damaged");
    fields.set(record.slice(0, equals), record.slice(equals + 1));
    at += length;
  }
  return fields;
}

function text(block: Buffer, at: number, length: number): string {
  const field = block.toString("latin1", at, at + length);
  const end = field.indexOf("\0");
  return end === -1 ? field : field.slice(0, end);
}

/** Undefined where it is not one, as with numbers beyond what the field holds. */
function octal(block: Buffer, at: number, length: number): number | undefined {
  const digits = text(block, at, length).trim();
  return /^[0-7]*$/.test(digits) ? Number.parseInt(digits || "0", 8) : undefined;
}

function longName(flag: "K" | "L", name: string): Buffer[] {
  const content = Buffer.from(`${name}\0`, "latin1");
  const header = { name: "././@LongLink", flag, size: content.length, mode: 0, mtimeSeconds: 0, target: "" };
  return [headerBlock(header), content, Buffer.alloc(paddingOf(content.length))];
}

function headerBlock({
  name,
  flag,
  size,
  mode,
  mtimeSeconds,
  target,
}: Omit<ArchiveEntry, "type"> & { readonly flag: string }): Buffer {
  const block = Buffer.alloc(blockBytes);
  const number = (value: number, at: number, length: number): number =>
    block.write(`${value.toString(8).padStart(length - 1, "0")}\0`, at, "latin1");
  block.write(name.slice(0, 100), 0, "latin1");
  number(mode, 100, 8);
  number(0, 108, 8);
  number(0, 116, 8);
  number(size, 124, 12);
  number(mtimeSeconds, 136, 12);
  block.write(" ".repeat(8), 148, "latin1");
  block.write(flag, 156, "latin1");
  block.write(target.slice(0, 100), 157, "latin1");
  block.write("ustar  \0", 257, "latin1");
  const sum = block.reduce((total, byte) => total + byte, 0);
  block.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148, "latin1");
  return block;
}
