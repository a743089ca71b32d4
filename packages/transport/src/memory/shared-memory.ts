/**
 * Files in /dev/shm, mapped into this process. The only place that calls the operating system directly.
 *
 * Node cannot map memory, so libc is called through koffi, whose prebuilt binary is an optional package. Where it does
 * not load, or /dev/shm does not exist, `sharedMemory()` is undefined and large arrays stream through sockets.
 */

import { closeSync, fstatSync, openSync, readdirSync, readFileSync, readSync, rmSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";

/** Where segments lie as files. */
export const segmentFolder = "/dev/shm";

/** Memory of a segment in this process. */
export type Mapping = { readonly pointer: bigint; readonly sizeBytes: number };

export interface SharedMemory {
  /** Equal for processes that see the same segments and may open them. */
  readonly key: string;
  /** Makes the file and maps it, every page allocated; undefined when the memory is not to be had. */
  create(name: string, sizeBytes: number): Mapping | undefined;
  /**
   * Maps a segment that another process made. Writes to a `private` mapping are seen here only: a page is copied when it
   * is first written. Throws what `open` throws.
   */
  open(name: string, kind?: "shared" | "private"): Mapping;
  /** The memory as an ArrayBuffer. It must never be touched after `unmap`; garbage collection does not free it. */
  view(mapping: Mapping, sizeBytes: number): ArrayBuffer;
  unmap(mapping: Mapping): void;
  /** Whether a `private` mapping still shows the segment everywhere; false where the system does not tell. */
  isUnwritten(mapping: Mapping): boolean;
}

const protRead = 1;
const protReadWrite = 3;
const mapShared = 1;
const mapPrivate = 2;
const mapPopulate = process.platform === "linux" ? 0x8000 : 0;
const mapFailed = 0xffffffffffffffffn;

let memory: SharedMemory | undefined;
let tried = false;

/** The shared memory of this host, opened once a process. */
export function sharedMemory(): SharedMemory | undefined {
  if (!tried) {
    tried = true;
    memory = load();
  }
  return memory;
}

function load(): SharedMemory | undefined {
  if (process.platform !== "linux") return undefined;
  try {
    const folder = statSync(segmentFolder);
    const boot = readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
    const koffi = createRequire(import.meta.url)("koffi") as typeof import("koffi");
    const libc = koffi.load("libc.so.6");
    const mmap = libc.func("void *mmap(void *address, size_t length, int protection, int flags, int fd, long offset)");
    const munmap = libc.func("int munmap(void *address, size_t length)");
    const fallocate = libc.func("int posix_fallocate(int fd, long offset, long length)");
    const mprotect = libc.func("int mprotect(void *address, size_t length, int protection)");
    const map = (fd: number, sizeBytes: number, kind: "shared" | "private" = "shared"): Mapping | undefined => {
      // Every page is mapped at once, which costs less than a fault each. Those of a private mapping would be copied if it
      // were writable from the start.
      const isShared = kind === "shared";
      const flags = (isShared ? mapShared : mapPrivate) | mapPopulate;
      const protection = isShared ? protReadWrite : protRead;
      const pointer = mmap(null, sizeBytes, protection, flags, fd, 0) as bigint | null;
      if (pointer === null || BigInt.asUintN(64, pointer) === mapFailed) return undefined;
      if (isShared || mprotect(pointer, sizeBytes, protReadWrite) === 0) return { pointer, sizeBytes };
      munmap(pointer, sizeBytes);
      return undefined;
    };
    return {
      key: `${boot}:${folder.dev}:${process.getuid?.() ?? ""}`,
      create(name, sizeBytes) {
        const path = join(segmentFolder, name);
        let fd: number | undefined;
        try {
          fd = openSync(path, "wx+", 0o600);
          // Allocated now: a page that turns out missing while it is written would kill the process (SIGBUS).
          const mapping = fallocate(fd, 0, sizeBytes) === 0 ? map(fd, sizeBytes) : undefined;
          if (mapping === undefined) rmSync(path, { force: true });
          return mapping;
        } catch {
          return undefined;
        } finally {
          if (fd !== undefined) closeSync(fd);
        }
      },
      open(name, kind = "shared") {
        const fd = openSync(join(segmentFolder, name), "r+");
        try {
          const sizeBytes = fstatSync(fd).size;
          const mapping = sizeBytes > 0 ? map(fd, sizeBytes, kind) : undefined;
          if (mapping === undefined) throw new Error(`'${name}' cannot be mapped`);
          return mapping;
        } finally {
          closeSync(fd);
        }
      },
      view: (mapping, sizeBytes) => koffi.view(mapping.pointer, sizeBytes),
      unmap(mapping) {
        munmap(mapping.pointer, mapping.sizeBytes);
      },
      isUnwritten: showsFileOnly,
    };
  } catch {
    return undefined;
  }
}

const pageBytes = 4096n;
const pageEntryBytes = 8;
/** In the last byte of a page's entry, of a page that is the file's: bit 61 of the entry. */
const isOfFile = 0x20;

/** A page that was written is this process's own. Linux tells of each page in 8 bytes; one that it tells nothing of counts as written. */
function showsFileOnly({ pointer, sizeBytes }: Mapping): boolean {
  let fd: number | undefined;
  try {
    fd = openSync("/proc/self/pagemap", "r");
    const entries = Buffer.allocUnsafe(64 * 1024);
    const start = Number((BigInt.asUintN(64, pointer) / pageBytes) * BigInt(pageEntryBytes));
    const end = start + Math.ceil(sizeBytes / Number(pageBytes)) * pageEntryBytes;
    for (let at = start; at < end; ) {
      const numBytes = readSync(fd, entries, 0, Math.min(entries.length, end - at), at);
      if (numBytes === 0) return false;
      for (let last = pageEntryBytes - 1; last < numBytes; last += pageEntryBytes)
        if (((entries[last] as number) & isOfFile) === 0) return false;
      at += numBytes;
    }
    return true;
  } catch {
    return false;
  } finally {
    if (fd !== undefined) closeSync(fd);
  }
}

export function unlinkSegment(name: string): void {
  rmSync(join(segmentFolder, name), { recursive: true, force: true });
}

const prefixPattern = /^[A-Za-z0-9_][A-Za-z0-9_.-]{7,160}$/;

/** Throws `config.invalid` unless segments may be named so. */
export function checkSegmentPrefix(prefix: string): void {
  if (prefixPattern.test(prefix)) return;
  throw new TreadleError(
    "config.invalid",
    `segment prefix '${prefix}' is not allowed: 8 to 160 letters, digits, '_', '.' and '-'; use 'treadle-<run>.'`,
  );
}

/** Removes one segment of a run after the process that made it died. Whoever has it mapped keeps its memory. */
export function removeSegment(name: string): void {
  checkSegmentPrefix(name);
  unlinkSegment(name);
}

/**
 * Removes the segment files whose names start with `prefix`, and folders of such names (`HostFiles`), after the processes that
 * made them died; returns their number. Memory that a living process still has mapped stays valid until it unmaps it.
 */
export function removeSegments(prefix: string): number {
  checkSegmentPrefix(prefix);
  let names: string[];
  try {
    names = readdirSync(segmentFolder).filter((name) => name.startsWith(prefix));
  } catch {
    return 0;
  }
  for (const name of names) unlinkSegment(name);
  return names.length;
}
