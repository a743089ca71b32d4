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
 * RN5 (TR5) where keys are given, entries and files are signed, and nothing that is read counts which no trusted runner has
 *    signed for its place in this run, except entries that this machine has itself.
 */
import { existsSync } from "node:fs";
import { isAbsolute, join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { type RunStore, TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { readJson } from "./bounded-json.ts";
import { mustKeep, throughElections } from "./elections.ts";
import type { NatsConnection } from "./nats-connection.ts";
import type { ObjectSource, Vouched } from "./nats-messages.ts";
import { checkName, type NatsControlPlaneOptions, openNatsConnection } from "./open-nats-connection.ts";
import { RunProof, Trust } from "./trust.ts";

export type NatsRunStoreOptions = NatsControlPlaneOptions & {
  readonly runId: string;
  /** the run's on this machine */
  readonly folder: string;
  /** told once when it begins to wait for servers that are away */
  readonly onNotice?: (text: string) => void;
};

const Stored = z.object({
  owner: z.string(),
  entry: z.string().optional(),
  object: z.string().optional(),
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
/** What is signed of an entry, and of a file. */
const placed = (number: number, { entry, object }: Stored) => ({
  number,
  entry: entry ?? null,
  object: object ?? null,
});
const named = (name: string, digest: string) => ({ name, digest });
const numbered = "n";

export class NatsRunStore implements RunStore {
  readonly #connection: NatsConnection;
  readonly #options: NatsRunStoreOptions;
  readonly #trust: Trust | undefined;
  readonly #owner = crypto.randomUUID();
  readonly #entries: string[] = [];
  /** names of files that were acknowledged */
  readonly #kept = new Set<string>();
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

  /** Connects; takes nothing. Rejects with `control-plane.unreachable`, `control-plane.refused` or `config.invalid`. */
  static async open(options: NatsRunStoreOptions): Promise<NatsRunStore> {
    checkName("run", options.runId);
    const trust = Trust.of(options.nats);
    const connection = await openNatsConnection(options);
    const store = new NatsRunStore(connection, options, trust);
    try {
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
    const mark = JSON.stringify({ owner: this.#owner } satisfies Stored);
    // The one before may have been about to append: what it wrote is read, and comes before the mark.
    for (let attempt = 0; !(await this.#write(all.length, mark)); attempt++) {
      const theirs = this.#theirs;
      if (attempt === takeAttempts || theirs === undefined) throw this.#locked();
      all.push(theirs);
    }
    this.#entries.length = 0;
    for (const [number, data] of all.entries()) {
      const entry = await this.#entryOf(number, data, own[this.#entries.length]);
      if (entry !== undefined) this.#entries.push(entry);
    }
    for (const name of await this.names()) this.#kept.add(name);
  }

  async append(entry: string, files: readonly string[] = []): Promise<void> {
    if (this.#failure) throw this.#failure;
    try {
      for (const name of files) if (!this.#kept.has(name)) await this.keep(name);
      await this.#keepLost();
      let stored: Stored = { owner: this.#owner, entry };
      if (Buffer.byteLength(entry) > maxEntryBytes) {
        const object = `${entries}/${String(this.#next)}-${this.#owner}`;
        await this.#keepLarge(object, entry);
        stored = { owner: this.#owner, object };
      }
      await this.#checkLast();
      const proof = this.#trust?.proveRun(this.#options.runId, placed(this.#next, stored));
      if (!(await this.#write(this.#next, JSON.stringify({ ...stored, proof })))) throw this.#locked();
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
    await this.#put(name, `'${name}'`, { path: this.#path(name) });
    this.#kept.add(name);
  }

  /** Rejects with `control-plane.untrusted`. */
  async fetch(name: string): Promise<boolean> {
    const path = this.#path(name);
    const digest = await this.#digestOf(name);
    return this.#insist(`'${name}'`, transferMs, () =>
      this.#connection.fetchObject(this.#objects, this.#object(name), path, digest),
    );
  }

  /** What is kept under that name, of which nothing is written here, and nothing checked. */
  text(name: string): Promise<string | undefined> {
    return this.#insist(`'${name}'`, exchangeMs, () => this.#connection.objectText(this.#objects, this.#object(name)));
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
      const areThere = await Promise.all(
        all.map((name) =>
          this.#insist(`'${name}'`, exchangeMs, () => this.#connection.hasObject(this.#objects, this.#object(name))),
        ),
      );
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

  async #keepLarge(object: string, entry: string): Promise<void> {
    await this.#put(object, "an entry", { text: entry });
    this.#large.set(object, entry);
  }

  /** Signed with its name. */
  async #put(name: string, what: string, source: ObjectSource): Promise<void> {
    const object = this.#object(name);
    await this.#insist(what, transferMs, async () => {
      await this.#connection.putObject(this.#objects, object, source, await this.#vouch(name, source));
    });
  }

  async #vouch(name: string, source: ObjectSource): Promise<Vouched | undefined> {
    if (this.#trust === undefined) return undefined;
    const digest = await this.#connection.digest(source);
    if (digest === undefined) return undefined; // there is no such file, which whoever reads it says
    return { digest, note: JSON.stringify(this.#trust.proveRun(this.#options.runId, named(name, digest))) };
  }

  /** RN5. Of the file that somebody trusted has kept under that name; undefined without keys, and where there is none. */
  async #digestOf(name: string): Promise<string | undefined> {
    const trust = this.#trust;
    if (trust === undefined) return undefined;
    const vouched = await this.#insist(`'${name}'`, exchangeMs, () =>
      this.#connection.objectNote(this.#objects, this.#object(name)),
    );
    if (vouched === undefined) return undefined;
    const { digest, note } = vouched;
    trust.checkRun(this.#options.runId, named(name, digest), readJson(RunProof, note), `file '${name}'`);
    return digest;
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

  /** RN3. */
  async #checkLast(): Promise<void> {
    const last = this.#last;
    if (last === undefined || (await this.#turnThere()) > this.#turn) throw this.#locked();
    const found = await this.#read(
      () => this.#connection.get(this.#log, last.key),
      (entry) => entry !== undefined,
    );
    if (found?.data !== last.data) throw this.#lost("its last entry");
  }

  /** `own`: what this machine has in that place. */
  async #entryOf(number: number, data: string, own: string | undefined): Promise<string | undefined> {
    const stored = readJson(Stored, data);
    if (stored === undefined) throw this.#lost("the form of an entry");
    const { entry, object, proof } = stored;
    if (object === undefined) {
      if (entry !== undefined && entry !== own) this.#checkEntry(number, stored, proof);
      return entry;
    }
    this.#checkEntry(number, stored, proof);
    const digest = await this.#digestOf(object);
    const text = await this.#insist("an entry", transferMs, () =>
      this.#connection.objectText(this.#objects, this.#object(object), digest),
    );
    if (text === undefined) throw this.#lost("an entry that is kept as an object");
    this.#large.set(object, text);
    return text;
  }

  /** RN5. */
  #checkEntry(number: number, stored: Stored, proof: RunProof | undefined): void {
    this.#trust?.checkRun(this.#options.runId, placed(number, stored), proof, `entry ${number}`);
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
        if (cause.code === "control-plane.refused" || cause.code === "run.locked") throw cause;
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

  #lost(what: string): TreadleError {
    return new TreadleError(
      "journal.corrupt",
      `the NATS servers have lost ${what} of run '${this.#options.runId}'; where its folder still is, 'treadle resume' keeps it anew from there; set cluster.nats.replicas to 3 on three servers`,
    );
  }
}
