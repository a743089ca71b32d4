/**
 * A run's log and files at the NATS servers, so that any machine goes on with it. Its connection is its own: states of many
 * megabytes delay nobody's beats.
 *
 * Entries are keys `<run>.<number>` of one key-value bucket, each written only where none was before (a compare-and-set). Taking the log writes an entry too, the taker's mark: from then on the number that the one before
 * would write next is used, and it is told `run.locked`. A number of turns, read before each append, only makes that
 * sooner. So no clock and no lease decides who may write; they only say
 * whom it is fair to take a run from, which is the caller's part. Files, and entries too large for a message, are objects.
 *
 * RN1 (SP1) an append resolves when the servers have acknowledged it: with one replica it survives the server's process, with
 *    three also a server's machine. A single server syncs to its disk later (by default within two minutes).
 * RN2 (SP2) an acknowledgement that was lost is found out by reading: the entry that is there is ours or somebody else's.
 * RN3 an entry is written only while the one before it is in its place, so servers that lost it are noticed.
 * RN4 while a runner appends, it looks every two seconds whether objects are still there, and keeps lost ones anew: servers of
 *    2.9 were seen to lose old ones when they started again after a crash and others had been deleted in between, and were
 *    then elected to lead those that had them. What is lost after the last look is not noticed.
 * RN5 (TR5) where keys are given, everything in the log, marks too, is signed for its place, and after what comes before it: each
 *    names the digest of the one before. A runner appends only to what it has found so, so what it signs vouches for all before
 *    it. What comes after the last such entry counts only as signed itself, or as this machine has it itself.
 * RN6 an entry names the digests and sizes of its files; other files are signed with their names. What is larger than that is
 *    read no further. Which files there are nobody signs: nothing is removed here since it is not listed there.
 */
import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { isAbsolute, join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { type RunStore, TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { readJson } from "./bounded-json.ts";
import { mustKeep, throughElections } from "./elections.ts";
import type { NatsConnection } from "./nats-connection.ts";
import type { Content, ObjectSource, Vouched } from "./nats-messages.ts";
import { checkName, type NatsControlPlaneOptions, openNatsConnection, requireTrust } from "./open-nats-connection.ts";
import { RunProof, Trust } from "./trust.ts";

export type NatsRunStoreOptions = NatsControlPlaneOptions & {
  readonly runId: string;
  /** the run's on this machine */
  readonly folder: string;
  /** told once when it begins to wait for servers that are away */
  readonly onNotice?: (text: string) => void;
};

const Files = z.record(z.string(), z.object({ digest: z.string(), sizeBytes: z.int().nonnegative() }));

const Stored = z.object({
  owner: z.string(),
  /** the digest of the one before */
  previous: z.string(),
  entry: z.string().optional(),
  object: z.string().optional(),
  /** that the entry refers to, the object among them */
  files: Files.optional(),
  proof: RunProof.optional(),
});
type Stored = z.infer<typeof Stored>;

const objectsOf = ({ nats }: NatsControlPlaneOptions): string => `${nats.subjectPrefix}-runs`;

const takeAttempts = 100;
const retryMs = 250;
/** One exchange with the servers that has not ended by then is tried again. */
const exchangeMs = 15_000;
/** One file, however large. */
const transferMs = 600_000;
const catchUpMs = 5000;
const maxEntryBytes = 512 * 1024;
/** Between two looks at whether all objects are still there, which list them. */
const lookMs = 2000;
const entries = "entries";
/** A run's configuration has less. */
const maxTextBytes = 1024 * 1024;
/** What is signed of an entry, and of a file. */
const placed = (number: number, { proof: _, ...stored }: Stored) => ({ number, ...stored });
const named = (name: string, { digest, sizeBytes }: Content) => ({ name, digest, sizeBytes });
const digestOf = (data: string): string => createHash("sha256").update(data).digest("base64url");
const isEntry = ({ entry, object }: Stored): boolean => entry !== undefined || object !== undefined;
const isSame = (content: Content, other: Content | undefined): boolean =>
  content.digest === other?.digest && content.sizeBytes === other.sizeBytes;
const numbered = "n";
/** The servers say no more when they are asked again. */
const notToRepeat = new Set(["control-plane.refused", "journal.corrupt", "run.locked"]);

export class NatsRunStore implements RunStore {
  readonly #connection: NatsConnection;
  readonly #options: NatsRunStoreOptions;
  readonly #trust: Trust | undefined;
  readonly #owner = crypto.randomUUID();
  readonly #entries: string[] = [];
  /** names of files that were acknowledged, and of those that the newest entry refers to */
  readonly #kept = new Set<string>();
  /** what they are, and what all entries say of theirs */
  readonly #contents = new Map<string, Content>();
  /** entries that are objects, by the object's name */
  readonly #large = new Map<string, string>();
  #lookedMs = Number.NEGATIVE_INFINITY;
  #last: { readonly key: string; readonly data: string } | undefined;
  #next = 0;
  #turn = 0;
  /** what somebody else has written where this one wanted to */
  #theirs: string | undefined;
  #failure: TreadleError | undefined;

  private constructor(connection: NatsConnection, options: NatsRunStoreOptions, trust: Trust | undefined) {
    this.#connection = connection;
    this.#options = options;
    this.#trust = trust;
  }

  /**
   * Connects; takes nothing. Rejects with `control-plane.unreachable`, `control-plane.refused`, `control-plane.untrusted` or
   * `config.invalid`.
   */
  static async open(options: NatsRunStoreOptions): Promise<NatsRunStore> {
    checkName("run", options.runId);
    requireTrust(options.nats);
    const trust = Trust.of(options.nats);
    const connection = await openNatsConnection(options);
    const store = new NatsRunStore(connection, options, trust);
    try {
      requireTrust(options.nats, connection.listensOn);
      await mustKeep(() => connection.openBucket(store.#log, options.nats.replicas));
      await mustKeep(() => connection.openObjects(store.#objects, options.nats.replicas));
      return store;
    } catch (error) {
      await connection.close();
      throw error;
    }
  }

  /** The ids of all runs that are kept there, oldest first. */
  static async list(options: NatsControlPlaneOptions): Promise<string[]> {
    const connection = await openNatsConnection(options);
    try {
      const bucket = objectsOf(options);
      await mustKeep(() => connection.openObjects(bucket, options.nats.replicas));
      const names = await throughElections(() => connection.listObjects(bucket, ""));
      return [...new Set(names.map((name) => name.slice(0, name.indexOf("/"))))].sort();
    } finally {
      await connection.close();
    }
  }

  get entries(): readonly string[] {
    return this.#entries;
  }

  get #log(): string {
    return `${this.#options.nats.subjectPrefix}-journals`;
  }

  get #objects(): string {
    return objectsOf(this.#options);
  }

  /**
   * Takes the log from whoever had it, and reads it. `own`: the entries that this machine has itself, as far as they go.
   * Rejects with `journal.corrupt`, `run.locked`, `control-plane.untrusted`.
   */
  async take(own: readonly string[] = []): Promise<void> {
    const { runId } = this.#options;
    await this.#takeTurn();
    const sorted = await this.#read(
      async () =>
        (await this.#connection.list(this.#log, `${runId}.${numbered}`)).toSorted((a, b) => (a.key < b.key ? -1 : 1)),
      (found) => found.every(({ key }, number) => key === this.#key(number)),
    );
    if (sorted === undefined) throw this.#lost("some of its entries");
    const all = sorted.map(({ data }) => data);
    const before = () => digestOf(all.at(-1) ?? "");
    // The one before may have been about to append: what it wrote is read, and comes before the mark.
    for (let attempt = 0; !(await this.#add({ owner: this.#owner, previous: before() }, all.length)); attempt++) {
      const theirs = this.#theirs;
      if (attempt === takeAttempts || theirs === undefined) throw this.#locked();
      all.push(theirs);
    }
    await this.#readAll(all, own);
  }

  async append(entry: string, files: readonly string[] = []): Promise<void> {
    if (this.#failure) throw this.#failure;
    try {
      for (const name of files) if (!this.#kept.has(name)) await this.keep(name);
      await this.#keepLost();
      const contents = Object.fromEntries(files.map((name) => [name, this.#contents.get(name) as Content]));
      const { data } = await this.#checkLast();
      let stored: Stored = { owner: this.#owner, previous: digestOf(data), entry, files: contents };
      if (Buffer.byteLength(entry) > maxEntryBytes) {
        const object = `${entries}/${String(this.#next)}-${this.#owner}`;
        const content = await this.#keepLarge(object, entry);
        stored = { owner: this.#owner, previous: digestOf(data), object, files: { ...contents, [object]: content } };
      }
      if (!(await this.#add(stored, this.#next))) throw this.#locked();
      this.#entries.push(entry);
    } catch (error) {
      this.#failure = error as TreadleError;
      throw error;
    }
  }

  async names(): Promise<string[]> {
    const below = this.#object("");
    const all = await this.#insist("the names of its files", exchangeMs, () =>
      this.#connection.listObjects(this.#objects, below),
    );
    return all.map((name) => name.slice(below.length)).filter((name) => !name.startsWith(`${entries}/`));
  }

  async keep(name: string): Promise<void> {
    this.#contents.set(name, await this.#put(name, `'${name}'`, { path: this.#path(name) }));
    this.#kept.add(name);
  }

  /** Rejects with `control-plane.untrusted` and `journal.corrupt`. */
  async fetch(name: string): Promise<boolean> {
    const path = this.#path(name);
    const content = await this.#contentOf(name, this.#contents.get(name));
    return this.#insist(`'${name}'`, transferMs, () =>
      this.#connection.fetchObject(this.#objects, this.#object(name), path, content),
    );
  }

  /** What is kept under that name, of which nothing is written here, and nothing checked but that it is no megabyte. */
  text(name: string): Promise<string | undefined> {
    return this.#insist(`'${name}'`, exchangeMs, () =>
      this.#connection.objectText(this.#objects, this.#object(name), undefined, maxTextBytes),
    );
  }

  async remove(name: string): Promise<void> {
    this.#kept.delete(name);
    await this.#insist(`'${name}'`, exchangeMs, () => this.#connection.deleteObject(this.#objects, this.#object(name)));
  }

  /** Removes everything that is kept of the run. */
  async forget(): Promise<void> {
    const below = this.#object("");
    await this.#connection.purge(this.#log, this.#options.runId);
    for (const name of await this.#connection.listObjects(this.#objects, below)) {
      await this.#connection.deleteObject(this.#objects, name);
    }
  }

  close(): Promise<void> {
    return this.#connection.close();
  }

  #key(number: number): string {
    return `${this.#options.runId}.${numbered}.${String(number).padStart(9, "0")}`;
  }

  /** Names come from the servers, too. */
  #path(name: string): string {
    if (!isAbsolute(name) && !name.split("/").includes("..")) return join(this.#options.folder, name);
    throw new TreadleError(
      "journal.corrupt",
      `run '${this.#options.runId}' has a file '${name}' outside of its folder`,
    );
  }

  #object(name: string): string {
    return `${this.#options.runId}/${name}`;
  }

  /** Signed for its place (RN5). False when somebody else's has that number. */
  #add(stored: Stored, number: number): Promise<boolean> {
    const proof = this.#trust?.proveRun(this.#options.runId, placed(number, stored));
    return this.#write(number, JSON.stringify({ ...stored, proof } satisfies Stored));
  }

  /** False when somebody else's entry has that number (RN2). */
  async #write(number: number, data: string): Promise<boolean> {
    const key = this.#key(number);
    const outcome = await this.#insist("an entry", exchangeMs, () => this.#connection.put(this.#log, key, data, true));
    if (outcome === "conflict") {
      const found = await this.#read(
        () => this.#connection.get(this.#log, key),
        (entry) => entry !== undefined,
      );
      this.#theirs = found?.data;
      if (found?.data !== data) return false;
    }
    this.#last = { key, data };
    this.#next = number + 1;
    return true;
  }

  /** RN4. Asks for each, since that is answered by the server that leads: what others list may be more than it has. */
  async #keepLost(): Promise<void> {
    if (performance.now() - this.#lookedMs < lookMs) return;
    const lost = async (names: Iterable<string>): Promise<string[]> => {
      const all = [...names];
      const areThere = await Promise.all(all.map((name) => this.#has(name)));
      return all.filter((_, index) => !areThere[index]);
    };
    for (const object of await lost(this.#large.keys())) {
      await this.#keepLarge(object, this.#large.get(object) as string);
    }
    for (const name of await lost(this.#kept)) {
      if (existsSync(this.#path(name))) {
        await this.keep(name);
        this.#options.onNotice?.(`the NATS servers had lost '${name}' of the run, and have it again`);
      } else if (this.#kept.delete(name)) {
        this.#options.onNotice?.(`the NATS servers have lost '${name}' of the run, and its folder has it no more`);
      }
    }
    this.#lookedMs = performance.now();
  }

  async #keepLarge(object: string, entry: string): Promise<Content> {
    const content = await this.#put(object, "an entry", { text: entry });
    this.#large.set(object, entry);
    return content;
  }

  /** Signed with its name. */
  #put(name: string, what: string, source: ObjectSource): Promise<Content> {
    return this.#insist(what, transferMs, async () => {
      const vouched = await this.#vouch(name, source);
      await this.#connection.putObject(this.#objects, this.#object(name), source, vouched);
      return { digest: vouched.digest, sizeBytes: vouched.sizeBytes };
    });
  }

  async #vouch(name: string, source: ObjectSource): Promise<Vouched> {
    const content = await this.#connection.content(source);
    if (content === undefined) throw new Error(`'${name}' cannot be read`);
    const proof = this.#trust?.proveRun(this.#options.runId, named(name, content));
    return { ...content, note: proof === undefined ? "" : JSON.stringify(proof) };
  }

  /** RN6. What a file must be; `said`: by an entry. Undefined where there is none. */
  async #contentOf(name: string, said: Content | undefined): Promise<Content | undefined> {
    const vouched = await this.#read(
      () => this.#connection.objectNote(this.#objects, this.#object(name)),
      (found) => found === undefined || said === undefined || isSame(found, said),
    );
    if (vouched === undefined) {
      if (said === undefined || !(await this.#has(name))) return undefined;
      throw this.#broken(`file '${name}'`, "is another than its journal says");
    }
    const { note, ...content } = vouched;
    if (said === undefined) {
      const { runId } = this.#options;
      this.#trust?.checkRun(runId, named(name, content), readJson(RunProof, note), `file '${name}'`);
    }
    return content;
  }

  #has(name: string): Promise<boolean> {
    return this.#insist(`'${name}'`, exchangeMs, () => this.#connection.hasObject(this.#objects, this.#object(name)));
  }

  get #turnKey(): string {
    return `${this.#options.runId}.turn`;
  }

  async #turnThere(): Promise<number> {
    const found = await this.#insist("its turn", exchangeMs, () => this.#connection.get(this.#log, this.#turnKey));
    return Number(found?.data ?? 0);
  }

  /** Asks the one before to stop appending, which would else be ahead of the mark all the time. */
  async #takeTurn(): Promise<void> {
    this.#turn = (await this.#turnThere()) + 1;
    await this.#insist("its turn", exchangeMs, () =>
      this.#connection.put(this.#log, this.#turnKey, String(this.#turn)),
    );
  }

  /** RN3. Resolves with the last entry, as it is there. */
  async #checkLast(): Promise<{ readonly data: string }> {
    const last = this.#last;
    if (last === undefined || (await this.#turnThere()) > this.#turn) throw this.#locked();
    const found = await this.#read(
      () => this.#connection.get(this.#log, last.key),
      (entry) => entry !== undefined,
    );
    if (found?.data !== last.data) throw this.#lost("its last entry");
    return last;
  }

  /** RN5. `own`: what this machine has itself. */
  async #readAll(all: readonly string[], own: readonly string[]): Promise<void> {
    const log = all.map((data) => {
      const stored = readJson(Stored, data);
      if (stored === undefined) throw this.#lost("the form of an entry");
      return stored;
    });
    for (const [number, { previous }] of log.entries()) {
      if (previous === digestOf(all[number - 1] ?? "")) continue;
      throw this.#broken(`entry ${number}`, "does not follow the one before it");
    }
    const lastVouched = log.findLastIndex((each, number) => isEntry(each) && this.#problem(each, number) === undefined);
    this.#entries.length = 0;
    let isOwn = true;
    for (const [number, stored] of log.entries()) {
      const problem = number > lastVouched ? this.#problem(stored, number) : undefined;
      const mine = own[this.#entries.length];
      if (isEntry(stored)) {
        isOwn &&= mine !== undefined && (await this.#says(stored, mine));
        if (problem === undefined) this.#entries.push(await this.#entryOf(stored));
        else if (isOwn) this.#entries.push(mine as string);
      }
      if (problem !== undefined && !isOwn) throw problem;
    }
  }

  /** Whether this is its text. */
  async #says({ entry, object, files = {} }: Stored, text: string): Promise<boolean> {
    if (object === undefined) return entry === text;
    const content = await this.#connection.content({ text });
    return content !== undefined && isSame(content, files[object]);
  }

  async #entryOf({ entry, object, files = {} }: Stored): Promise<string> {
    const { [object ?? ""]: said, ...others } = files;
    for (const [name, content] of Object.entries(others)) this.#contents.set(name, content);
    if (Object.keys(others).length > 0) {
      this.#kept.clear();
      for (const name of Object.keys(others)) this.#kept.add(name);
    }
    if (object === undefined) return entry as string;
    const content = await this.#contentOf(object, said);
    const text = await this.#insist("an entry", transferMs, () =>
      this.#connection.objectText(this.#objects, this.#object(object), content),
    );
    if (text === undefined) throw this.#lost("an entry that is kept as an object");
    this.#large.set(object, text);
    return text;
  }

  /** Why no trusted runner has said that, if so. */
  #problem(stored: Stored, number: number): TreadleError | undefined {
    try {
      this.#trust?.checkRun(this.#options.runId, placed(number, stored), stored.proof, `entry ${number}`);
      return undefined;
    } catch (error) {
      return error as TreadleError;
    }
  }

  /** A server that is not the leader may answer without the newest: what looks incomplete is read again for a while. */
  async #read<T>(act: () => Promise<T>, isWhole: (found: T) => boolean): Promise<T | undefined> {
    const startedMs = performance.now();
    for (;;) {
      const found = await this.#insist("an entry", exchangeMs, act);
      if (isWhole(found)) return found;
      if (performance.now() - startedMs > catchUpMs) return undefined;
      await delay(retryMs);
    }
  }

  /** Tries until it works, or the servers have been away for too long. */
  async #insist<T>(what: string, limitMs: number, act: () => Promise<T>): Promise<T> {
    const { outageMs } = this.#options.nats;
    const startedMs = performance.now();
    let isTold = false;
    for (;;) {
      const timeout = new AbortController();
      try {
        const late = delay(limitMs, undefined, { signal: timeout.signal, ref: false }).then(() => {
          throw new TreadleError("control-plane.unreachable", `no answer came within ${limitMs} ms`);
        });
        late.catch(() => {});
        return await Promise.race([act(), late]);
      } catch (error) {
        const awayMs = performance.now() - startedMs;
        const cause = error as TreadleError;
        if (notToRepeat.has(cause.code)) throw cause;
        if (awayMs > outageMs) {
          throw new TreadleError(
            "control-plane.unreachable",
            `${what} of run '${this.#options.runId}' could not be kept by the NATS servers within cluster.nats.outageMs (${outageMs} ms): ${cause.message}; steps that they have not acknowledged do not count; see to the servers, then 'treadle resume ${this.#options.runId}'`,
            { cause },
          );
        }
        if (!isTold && awayMs > 1000) {
          isTold = true;
          this.#options.onNotice?.(`waits for the NATS servers, which must keep ${what}: ${cause.message}`);
        }
        await delay(retryMs);
      } finally {
        timeout.abort();
      }
    }
  }

  #locked(): TreadleError {
    return new TreadleError(
      "run.locked",
      `run '${this.#options.runId}' belongs to another runner now, which took it while this one was silent; follow that one`,
    );
  }

  #broken(what: string, how: string): TreadleError {
    const { runId } = this.#options;
    return new TreadleError(
      this.#trust === undefined ? "journal.corrupt" : "control-plane.untrusted",
      `${what} of run '${runId}', as the NATS servers have it, ${how}: what is kept was changed or lost; forget it with 'treadle runs --forget ${runId}', then resume the run where its folder still is`,
    );
  }

  #lost(what: string): TreadleError {
    return new TreadleError(
      "journal.corrupt",
      `the NATS servers have lost ${what} of run '${this.#options.runId}'; where its folder still is, 'treadle resume' stores it again from there; set cluster.nats.replicas to 3 on three servers`,
    );
  }
}
