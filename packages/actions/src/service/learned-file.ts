/**
 * What a service has learned of actions, kept from one start to the next. Nothing depends on it but how well a start decides: a file
 * that cannot be read is said and set aside, and one that cannot be written is said.
 *
 * LF1 one process at a time has the folder, so that none overwrites what another has learned: a second one is refused, and one that
 *    sees that it lost the folder to another writes no more. A process that was killed does not keep it.
 */
import { mkdir, readdir, readFile, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { type FolderLock, lockFolder, replaceFile } from "@treadle/transport";
import { z } from "zod";
import type { ActionHistory } from "../formulation/action-history.ts";
import { SavedHistory } from "../formulation/saved-history.ts";

const version = 1;
const usualEveryMs = 60_000;
const fileName = "learned.json";
const lockName = "learned.lock";
/** Several times what the bounds of `SavedHistory` come to, with long names; a string of JavaScript takes no more than twice as much. */
const mostBytes = 256 * 2 ** 20;

const Content = SavedHistory.extend({ version: z.literal(version) });
const Versioned = z.object({ version: z.unknown() });

export class LearnedFile {
  /** of the last start */
  readonly saved: SavedHistory | undefined;
  readonly #path: string;
  readonly #tell: (line: string) => void;
  readonly #everyMs: number;
  #history: ActionHistory | undefined;
  #numWritten = 0;
  #timer: NodeJS.Timeout | undefined;
  #writing: Promise<void> = Promise.resolve();
  #isFailing = false;
  #lock: FolderLock | undefined;
  #isLost = false;

  private constructor(
    path: string,
    { saved, tell, everyMs }: { saved: SavedHistory | undefined; tell: (line: string) => void; everyMs: number },
  ) {
    this.#path = path;
    this.saved = saved;
    this.#tell = tell;
    this.#everyMs = everyMs;
  }

  /** In the folder, which is made. Throws `config.invalid` where that cannot be, or another process has it. */
  static async open(folder: string, tell: (line: string) => void, everyMs = usualEveryMs): Promise<LearnedFile> {
    const refuse = (cause: Error): never => {
      const why = `state: '${folder}' cannot be used: ${cause.message}; name a folder that this user may write to`;
      throw new TreadleError("config.invalid", why, { cause });
    };
    await mkdir(folder, { recursive: true, mode: 0o700 }).catch(refuse);
    let file: LearnedFile | undefined;
    let loss: Error | undefined;
    const lock = await lockFolder(folder, join(folder, lockName), (cause) => {
      loss = cause;
      file?.lose(cause);
    }).catch((cause: NodeJS.ErrnoException) => {
      if (cause.code !== undefined && cause.code !== "ELOCKED") return refuse(cause);
      const why = `state: '${folder}' is in use: ${cause.message}; end that service first, or give each a folder of its own`;
      throw new TreadleError("config.invalid", why, { cause });
    });
    try {
      file = await LearnedFile.#read(folder, { tell, everyMs, refuse });
    } catch (error) {
      await lock.release();
      throw error;
    }
    file.#lock = lock;
    if (loss !== undefined) file.lose(loss);
    return file;
  }

  static async #read(
    folder: string,
    { tell, everyMs, refuse }: { tell: (line: string) => void; everyMs: number; refuse: (cause: Error) => never },
  ): Promise<LearnedFile> {
    const path = join(folder, fileName);
    const read = await contentIn(path).catch((cause: NodeJS.ErrnoException) =>
      cause.code === "ENOENT" ? undefined : refuse(cause),
    );
    await removePartial(folder).catch(refuse);
    if (typeof read === "string") {
      const aside = `${path}.ignored`;
      await rename(path, aside).catch(refuse);
      tell(`'${path}' is ignored, since ${read}; it is now '${aside}'`);
      return new LearnedFile(path, { saved: undefined, tell, everyMs });
    }
    if (read !== undefined) {
      const [kinds, curves] = [read.durations.length, read.curves.length];
      const known = `durations of ${kinds} ${kinds === 1 ? "kind" : "kinds"}, ${curves} ${curves === 1 ? "curve" : "curves"}`;
      tell(`what was learned before is known: ${known}, of '${path}'`);
    }
    return new LearnedFile(path, { saved: read, tell, everyMs });
  }

  /** Writes what the history learns from now on, now and then, and when it is closed. */
  keep(history: ActionHistory): void {
    this.#history = history;
    this.#timer = setInterval(() => void this.#write(), this.#everyMs).unref();
  }

  async close(): Promise<void> {
    clearInterval(this.#timer);
    await this.#write();
    const lock = this.#lock;
    this.#lock = undefined;
    await lock?.release().catch(() => {}); // the folder is gone
  }

  /** LF1 */
  private lose(cause: Error): void {
    if (this.#isLost) return;
    this.#isLost = true;
    this.#tell(`what is learned is kept no longer: '${this.#path}' is not this process's any more: ${cause.message}`);
  }

  #write(): Promise<void> {
    this.#writing = this.#writing.then(async () => {
      const history = this.#history;
      if (history === undefined || history.numObserved === this.#numWritten) return;
      await this.#lock?.look();
      if (this.#isLost) return;
      const { numObserved } = history;
      const content: z.infer<typeof Content> = { version, ...history.saved() };
      try {
        const data = Buffer.from(JSON.stringify(content));
        if (data.length > mostBytes) throw new Error(sizeProblem(data.length));
        await replaceFile(this.#path, (file) => file.writeFile(data));
        this.#numWritten = numObserved;
        this.#isFailing = false;
      } catch (error) {
        if (!this.#isFailing)
          this.#tell(`what was learned cannot be kept in '${this.#path}': ${(error as Error).message}`);
        this.#isFailing = true;
      }
    });
    return this.#writing;
  }
}

const sizeProblem = (bytes: number): string => `it has '${bytes}' bytes, and at most '${mostBytes}' are read`;

/** Or why it is none. */
async function contentIn(path: string): Promise<SavedHistory | string> {
  const { size } = await stat(path);
  return size > mostBytes ? sizeProblem(size) : contentOf(await readFile(path, "utf8"));
}

/** What a process left that ended while it wrote. */
async function removePartial(folder: string): Promise<void> {
  const left = (await readdir(folder)).filter((name) => name.startsWith(`${fileName}.`) && name.endsWith(".partial"));
  await Promise.all(left.map((name) => rm(join(folder, name), { force: true })));
}

/** Or why it is none. */
function contentOf(text: string): SavedHistory | string {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return `it is no JSON: ${(error as Error).message}`;
  }
  const says = Versioned.safeParse(value).data?.version;
  if (says !== undefined && says !== version) return `it is of version '${says}', and '${version}' is read here`;
  const { data, error } = Content.safeParse(value);
  if (data !== undefined) return data;
  const [{ path, message }] = error.issues as [z.core.$ZodIssue];
  return `it does not say what was learned: ${path.join(".") || "all of it"}: ${message}`;
}
