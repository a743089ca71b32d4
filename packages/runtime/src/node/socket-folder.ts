/**
 * The folder of a run's unix sockets: in the system's temporary folder, because the path of a socket must be short. It
 * also names the run's shared memory, which goes the same way.
 *
 * S4: the runner removes it at its end, its workers when they find the runner dead, whoever has ended a run with all its processes,
 * and every agent and runner on the machine, from time to time and when it leaves, when none of them could. A folder is dead when nobody
 * listens on its runner's socket, and the process that made it has ended, or, where that cannot be known, some time has passed. It has its
 * name only once it says who made it: one that does not say so is what somebody could not remove whole.
 */
import { closeSync, constants, existsSync, lstatSync, openSync, readdirSync, readFileSync, type Stats } from "node:fs";
import { lstat, mkdtemp, readdir, rename, rm, writeFile } from "node:fs/promises";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { maxUnixPathBytes, removeSegments } from "@treadle/transport";
import { isAbsent, isGone, ownName } from "./processes.ts";

const prefix = "treadle-sockets-";
/** Of one that does not say yet who makes it; no longer than the other, as paths of sockets are bounded. */
const unfinishedPrefix = "treadle-opening-";
/** A younger folder may belong to a runner that is about to listen. */
const minAgeMs = 60_000;
/** Since the machine was started: the same in all of its processes, whatever its clock is set to. */
const monotonicMs = (): number => Number(process.hrtime.bigint() / 1_000_000n);

export const runnerSocket = "runner";
/** The file in it that says how the names of the run's shared memory begin, when the folder was made, and by which process. */
const segmentsFile = "segments";

/** The folder of the runner's own sockets, which workers on its node share; no path where none can be there. */
export class RunnerSockets {
  #path = "";

  get path(): string {
    return this.#path;
  }

  async open(segmentPrefix: string): Promise<void> {
    this.#path = await makeSocketFolder(segmentPrefix);
  }

  async close(): Promise<void> {
    if (this.#path) await rm(this.#path, { recursive: true, force: true });
  }
}

/** Of what a component's sockets are called; a component with a longer name has less room above. */
const usualName = "project-inference-99-99";

/** Throws `config.invalid` where sockets below the folder for temporary files would have longer paths than there can be. */
export function checkSocketRoot(root = tmpdir()): void {
  const length = Buffer.byteLength(join(root, `${prefix}XXXXXX`, usualName));
  if (length <= maxUnixPathBytes) return;
  throw new TreadleError(
    "config.invalid",
    `sockets below '${root}' would have paths of about '${length}' bytes, of which '${maxUnixPathBytes}' are allowed; set TMPDIR to a folder with a shorter path`,
  );
}

async function makeSocketFolder(segmentPrefix: string): Promise<string> {
  checkSocketRoot();
  const unfinished = await mkdtemp(join(tmpdir(), unfinishedPrefix));
  try {
    await writeFile(join(unfinished, segmentsFile), [segmentPrefix, monotonicMs(), ownName ?? ""].join("\n"));
    const folder = join(tmpdir(), basename(unfinished).replace(unfinishedPrefix, prefix));
    await rename(unfinished, folder);
    return folder;
  } catch (error) {
    await rm(unfinished, { recursive: true, force: true }); // as where the disk is full
    throw error;
  }
}

/** A folder of one's own on a machine where the run has no runner; who listens in its place is this process. */
export async function openSocketFolder(segmentPrefix: string): Promise<{ path: string; close(): Promise<void> }> {
  const path = await makeSocketFolder(segmentPrefix);
  const marker = createServer((socket) => socket.destroy());
  marker.unref();
  await new Promise<void>((resolve, reject) => {
    marker.once("error", reject).listen(join(path, runnerSocket), resolve);
  });
  return {
    path,
    close: async () => {
      await new Promise((resolve) => marker.close(resolve));
      await rm(path, { recursive: true, force: true });
    },
  };
}

/** Resolves with whether some that are dead are still there: others of their runs may be about to begin, or write to them. */
export async function removeDeadSocketFolders(root = tmpdir()): Promise<boolean> {
  const names = await readdir(root).catch(() => []);
  const dead = new Map<string, string>(); // by name, what its segments begin with
  for (const name of names.filter(isSocketFolder)) {
    const folder = join(root, name);
    // A link is followed to a folder of this user's that others write to, and is nothing that a run has made.
    const found = await lstat(folder).catch(() => undefined);
    if (!found || !isOwnFolder(found)) continue;
    const segments = segmentsIn(folder);
    const isHalfRemoved = segments === undefined && name.startsWith(prefix);
    const [segmentPrefix = "", madeMs, maker = ""] = segments?.split("\n") ?? [];
    const isYoung = madeMs === undefined ? Date.now() - found.mtimeMs < minAgeMs : isYounger(Number(madeMs));
    const mayBeDead = isHalfRemoved || (isGone(maker) ?? !isYoung);
    const isDead = mayBeDead && !(await listens(join(folder, runnerSocket)));
    if (isDead) dead.set(name, segmentPrefix);
  }
  let isLeft = false;
  for (const [name, segmentPrefix] of dead) {
    if (isOfRun(segmentPrefix)) {
      const named = namesOfOthers(root, dead);
      if (named === undefined) {
        isLeft = true;
        continue;
      }
      if (!named.has(segmentPrefix)) removeSegments(segmentPrefix);
    }
    await rm(join(root, name), { recursive: true, force: true }).catch(() => {
      isLeft = true;
    });
  }
  return isLeft;
}

/**
 * What segments of folders that live begin with: a run that is resumed has the names of the one that died, and makes its folder before
 * anything else. Looked at in the turn in which they are removed, as that may be at any time. Undefined where one was made a moment ago, and
 * does not say yet.
 */
function namesOfOthers(root: string, dead: ReadonlyMap<string, string>): ReadonlySet<string> | undefined {
  const named = new Set<string>();
  for (const name of readdirSync(root)) {
    if (!isSocketFolder(name) || dead.has(name)) continue;
    const folder = join(root, name);
    try {
      if (!isOwnFolder(lstatSync(folder))) continue;
      const segments = segmentsIn(folder);
      // One that is being opened has another name a moment later.
      if (!segments && (existsSync(folder) || name.startsWith(unfinishedPrefix))) return undefined;
      if (segments) named.add(segments.split("\n")[0] as string);
    } catch {
      if (existsSync(folder) || name.startsWith(unfinishedPrefix)) return undefined;
    }
  }
  return named;
}

const isSocketFolder = (name: string): boolean => name.startsWith(prefix) || name.startsWith(unfinishedPrefix);

/** Not of everybody's. */
const isOfRun = (segmentPrefix: string): boolean => /^treadle-.+-$/.test(segmentPrefix);

/** Undefined where there is no such file; empty where it cannot be read, as a pipe, for which nobody waits. */
function segmentsIn(folder: string): string | undefined {
  try {
    const file = openSync(join(folder, segmentsFile), constants.O_RDONLY | constants.O_NONBLOCK);
    try {
      return readFileSync(file, "utf8");
    } finally {
      closeSync(file);
    }
  } catch (error) {
    return isAbsent(error) ? undefined : "";
  }
}

const isOwnFolder = (found: Stats): boolean => found.isDirectory() && found.uid === process.getuid?.();

/** What seems to be made later than now was made before the machine was started again. */
const isYounger = (madeMs: number): boolean => monotonicMs() >= madeMs && monotonicMs() - madeMs < minAgeMs;

function listens(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path);
    const answer = (isListening: boolean) => {
      socket.destroy();
      resolve(isListening);
    };
    socket.once("connect", () => answer(true));
    // A full backlog is somebody who listens; a missing or a refusing socket is nobody.
    socket.once("error", ({ code }: NodeJS.ErrnoException) => answer(code !== "ECONNREFUSED" && code !== "ENOENT"));
  });
}
