/**
 * What may be unpacked of a tar archive that somebody else made. Pure: bytes in, bytes out. What comes out was written here, so
 * that the tar that unpacks it sees no header that another program would read in another way.
 *
 * An archive is of a folder, then its first entry is `.`; or of one file, then that is its only entry.
 *
 * TA1 no name leads out: none is absolute, has `..` or a zero byte.
 * TA2 no link leads out. A symbolic one is relative, and goes up only at its beginning and not beyond the archive's folder: what
 *    lies behind other links cannot change where that is. A hard one names a file that came before.
 * TA3 nothing is written through a link or over what came before: what a name lies in is a folder, and no name comes twice.
 * TA4 nothing but files, folders and links comes out, with 9 bits of mode, and no owner.
 * TA5 entries, their content and their names stay within the limits, and what is kept of a header is bounded.
 */
import {
  type ArchiveEntry,
  blockBytes,
  endOfArchive,
  headerOf,
  paddingOf,
  parseExtended,
  parseHeader,
  refused,
  shownName,
} from "./archive-format.ts";

export type ArchiveLimits = {
  /** of all content together */
  readonly bytes: number;
  /** files, folders and links, those included that are only part of a name */
  readonly entries: number;
};

const longestName = 4096;
const longestExtended = 2 ** 16;
/** of one path of a folder in a folder */
const deepest = 256;
/** all together; they are kept until the end (TA3) */
const mostNameBytes = 2 ** 25;
/** Some tars fill up their last record. */
const longestRest = 2 ** 20;

/** by headers that precede an entry */
type Told = { name?: string | undefined; target?: string | undefined; size?: number | undefined };
type Kind = ArchiveEntry["type"] | "implied";

export class ArchiveFilter {
  readonly #limits: ArchiveLimits;
  readonly #kinds = new Map<string, Kind>();
  readonly #block = Buffer.alloc(blockBytes);
  #blockFill = 0;
  /** of content that comes; `extended`: it tells of the next entry */
  #left = 0;
  #padding = 0;
  #ownPadding = 0;
  #extended: { readonly type: "x" | "g" | "L" | "K"; readonly pieces: Buffer[] } | undefined;
  #told: Told = {};
  #bytes = 0;
  #nameBytes = 0;
  #numExtended = 0;
  #restBytes = 0;
  #isFolder: boolean | undefined;
  #hasEnded = false;

  constructor(limits: ArchiveLimits) {
    this.#limits = limits;
  }

  /** Of one file otherwise; known after the first entry. */
  get isFolder(): boolean {
    return this.#isFolder === true;
  }

  /** Throws `action.invalid`, which says what is wrong with which name. */
  push(chunk: Uint8Array): Buffer[] {
    const input = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength);
    const out: Buffer[] = [];
    for (let at = 0; at < input.length; ) {
      if (this.#hasEnded) {
        this.#restBytes += input.length - at;
        if (this.#restBytes > longestRest || input.subarray(at).some((byte) => byte !== 0))
          throw refused("something comes after its end");
        return out;
      }
      const wanted = this.#left || this.#padding || blockBytes - this.#blockFill;
      const piece = input.subarray(at, at + wanted);
      at += piece.length;
      if (this.#left > 0) this.#content(piece, out);
      else if (this.#padding > 0) this.#padding -= piece.length;
      else this.#header(piece, out);
    }
    return out;
  }

  /** What is left to come out. Throws where the archive was cut off. */
  end(): Buffer[] {
    if (this.#isFolder === undefined) throw refused("it is empty; an archive is of a file or a folder");
    // Two blocks of zeros end it; one is enough, and none too where an entry is complete.
    const isWhole = this.#left === 0 && this.#padding === 0 && this.#blockFill === 0 && this.#extended === undefined;
    const tellsOfNothing = Object.values(this.#told).every((value) => value === undefined);
    if (!tellsOfNothing || !(this.#hasEnded || isWhole)) throw refused("it was cut off");
    return [endOfArchive];
  }

  #content(piece: Buffer, out: Buffer[]): void {
    this.#left -= piece.length;
    if (this.#extended === undefined) out.push(piece);
    else this.#extended.pieces.push(Buffer.from(piece));
    if (this.#left > 0) return;
    if (this.#extended === undefined) {
      if (this.#ownPadding > 0) out.push(Buffer.alloc(this.#ownPadding));
    } else this.#tell();
  }

  #header(piece: Buffer, out: Buffer[]): void {
    this.#blockFill += piece.copy(this.#block, this.#blockFill);
    if (this.#blockFill < blockBytes) return;
    this.#blockFill = 0;
    const header = parseHeader(this.#block);
    if (header === undefined) {
      this.#hasEnded = true;
      return;
    }
    const { type } = header;
    if (type === "x" || type === "g" || type === "L" || type === "K") {
      if (header.size > longestExtended)
        throw refused(`an extended header has '${header.size}' bytes, of ${longestExtended} that it may have`);
      if (++this.#numExtended > 4 * (this.#limits.entries + 1))
        throw refused("it has more extended headers than entries");
      this.#extended = { type, pieces: [] };
      this.#expect(header.size);
      if (header.size === 0) this.#tell();
      return;
    }
    const { name = header.name, target = header.target, size = header.size } = this.#told;
    const entry = this.#checked({ ...header, type, name, target, size });
    this.#told = {};
    out.push(headerOf(entry));
    this.#expect(entry.size);
    this.#ownPadding = this.#padding;
  }

  #expect(bytes: number): void {
    this.#left = bytes;
    this.#padding = paddingOf(bytes);
  }

  #tell(): void {
    const { type, pieces } = this.#extended!;
    this.#extended = undefined;
    const content = Buffer.concat(pieces);
    if (type === "L" || type === "K") {
      const name = content.toString("latin1").replace(/\0+$/, "");
      if (type === "L") this.#told.name = name;
      else this.#told.target = name;
      return;
    }
    const fields = parseExtended(content);
    for (const key of fields.keys())
      if (key.startsWith("GNU.sparse")) throw refused("it has sparse files; archive them without --sparse");
    // What holds for all entries is nothing that is kept here.
    if (type === "g") return;
    this.#told.name = fields.get("path") ?? this.#told.name;
    this.#told.target = fields.get("linkpath") ?? this.#told.target;
    const size = fields.get("size");
    if (size !== undefined) this.#told.size = Number(size);
  }

  #checked(said: ArchiveEntry): ArchiveEntry {
    const { type } = said;
    const path = this.#pathOf(said.name);
    if (this.#isFolder === false) throw refused(`${shownName(said.name)} comes beside a file that stands alone`);
    if (this.#isFolder === undefined) {
      this.#isFolder = path.length === 0 && type === "folder";
      if (!this.#isFolder && (path.length !== 1 || type !== "file"))
        throw refused(
          `it begins with ${shownName(said.name)}; begin with '.', the folder, or with the one file that it is of`,
        );
    } else if (path.length === 0) throw refused(`${shownName(said.name)} comes again`);
    const name = this.#isFolder ? [".", ...path].join("/") : "./file";
    if (path.length > 0) this.#claim(path, type, said.name);
    const size = type === "file" ? said.size : 0;
    if (!Number.isSafeInteger(size) || size < 0 || size >= 2 ** 33)
      throw refused(`${shownName(said.name)} has '${size}' bytes; a file may have 8 GiB`);
    this.#bytes += size;
    if (this.#bytes > this.#limits.bytes)
      throw refused(`its files have more than ${this.#limits.bytes} bytes; move less, or raise limits.transferMib`);
    return {
      name: type === "folder" ? `${name}/` : name,
      type,
      size,
      // Its owner can always change and remove it.
      mode: type === "folder" ? (said.mode & 0o777) | 0o700 : (said.mode & 0o777) | 0o600,
      mtimeSeconds: said.mtimeSeconds,
      target: this.#targetOf(said, path),
    };
  }

  /** TA1 */
  #pathOf(name: string): string[] {
    if (name.length > longestName)
      throw refused(`a name has '${name.length}' bytes, of ${longestName} that it may have`);
    if (name.startsWith("/")) throw refused(`${shownName(name)} is absolute; give names below the folder`);
    const path = name.split("/").filter((part) => part !== "" && part !== ".");
    if (path.includes("..") || name.includes("\0"))
      throw refused(`${shownName(name)} leads out of the folder; leave it out`);
    if (path.length > deepest)
      throw refused(`${shownName(name)} lies in '${path.length}' folders, of ${deepest} that it may`);
    return path;
  }

  /** TA3 TA5 */
  #claim(path: readonly string[], type: Kind, shown: string): void {
    for (let depth = 1; depth < path.length; depth++) {
      const parent = path.slice(0, depth).join("/");
      const kind = this.#kinds.get(parent);
      if (kind === undefined) this.#keep(parent, "implied");
      else if (kind !== "folder" && kind !== "implied")
        throw refused(`${shownName(shown)} lies in ${shownName(parent)}, which is a ${kind}; leave it out`);
    }
    const name = path.join("/");
    const known = this.#kinds.get(name);
    if (known !== undefined && !(known === "implied" && type === "folder"))
      throw refused(`${shownName(shown)} comes again; archive it once`);
    this.#keep(name, type);
  }

  #keep(name: string, kind: Kind): void {
    if (!this.#kinds.has(name)) this.#nameBytes += name.length;
    this.#kinds.set(name, kind);
    const { entries } = this.#limits;
    if (this.#kinds.size > entries)
      throw refused(`it has more than ${entries} entries; move less, or raise limits.transferEntries`);
    if (this.#nameBytes > mostNameBytes)
      throw refused(`its names have more than ${mostNameBytes} bytes together; move less at once`);
  }

  /** TA2 */
  #targetOf({ type, target, name }: ArchiveEntry, path: readonly string[]): string {
    if (type !== "link" && type !== "hard link") return "";
    const out = (): Error =>
      refused(`the link ${shownName(name)} leads to ${shownName(target)}, out of the folder; leave it out`);
    if (type === "hard link") {
      const source = this.#pathOf(target);
      if (this.#kinds.get(source.join("/")) !== "file") throw out();
      return [".", ...source].join("/");
    }
    if (target === "" || target.length > longestName || target.startsWith("/") || target.includes("\0")) throw out();
    const parts = target.split("/").filter((part) => part !== "" && part !== ".");
    const ups = parts.findIndex((part) => part !== "..");
    const numUps = ups === -1 ? parts.length : ups;
    if (numUps > path.length - 1 || parts.slice(numUps).includes("..")) throw out();
    return target;
  }
}
