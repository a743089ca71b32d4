/** Objects of JetStream: files that are larger than a message may be, in chunks. Runs on the NATS thread. */
import { createHash, type Hash } from "node:crypto";
import { createReadStream } from "node:fs";
import { Readable } from "node:stream";
import { type JetStreamManager, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { type ObjectInfo, type ObjectStore, Objm } from "@nats-io/obj";
import type { NatsConnection } from "@nats-io/transport-node";
import { replaceFile } from "../replace-file.ts";
import type { Content, ObjectSource, Vouched } from "./nats-messages.ts";
import { checkShape } from "./stream-shape.ts";

/** Below the 1 MiB that servers take unless told otherwise; each is acknowledged before the next is sent. */
const chunkBytes = 512 * 1024;

/** An object is larger than it says, or than it may be. */
export class DamagedObject extends Error {}

type Open = { readonly store: ObjectStore; readonly manager: JetStreamManager; readonly replicas: number };

export class NatsObjects {
  readonly #connection: NatsConnection;
  readonly #open = new Map<string, Open>();

  constructor(connection: NatsConnection) {
    this.#connection = connection;
  }

  async openBucket(bucket: string, replicas: number): Promise<void> {
    const store = await new Objm(jetstream(this.#connection)).create(bucket, { replicas });
    const manager = await jetstreamManager(this.#connection);
    const { config } = await manager.streams.info(`OBJ_${bucket}`);
    checkShape(config, [`$O.${bucket}.C.>`, `$O.${bucket}.M.>`]);
    this.#open.set(bucket, { store, manager, replicas });
  }

  /** A server that keeps nothing over its restart has forgotten them. */
  async reopen(): Promise<void> {
    for (const [bucket, { replicas }] of [...this.#open]) await this.openBucket(bucket, replicas);
  }

  /** Rejects when the file is not what was vouched for: it has changed since. */
  async put(bucket: string, name: string, source: ObjectSource, vouched?: Vouched): Promise<void> {
    const { store } = this.#of(bucket);
    const said = vouched === undefined ? {} : { description: vouched.note };
    const meta = { name, ...said, options: { max_chunk_size: chunkBytes } };
    const info =
      "text" in source
        ? await store.putBlob(meta, Buffer.from(source.text))
        : await store.put(
            meta,
            Readable.toWeb(createReadStream(source.path, { highWaterMark: chunkBytes })) as ReadableStream<Uint8Array>,
          );
    if (vouched !== undefined && info.digest !== vouched.digest) throw new Error(`'${name}' changed while it was put`);
  }

  async note(bucket: string, name: string): Promise<Vouched | undefined> {
    const info = await this.#of(bucket).store.info(name);
    if (info === null || info.deleted) return undefined;
    return { digest: info.digest, sizeBytes: info.size, note: info.description ?? "" };
  }

  async has(bucket: string, name: string): Promise<boolean> {
    const info = await this.#of(bucket).store.info(name);
    return info !== null && !info.deleted;
  }

  /** Rejects when it is not what is expected, or larger than that, than it says, or than `maxBytes`. */
  async text(bucket: string, name: string, expected?: Content, maxBytes?: number): Promise<string | undefined> {
    const info = await this.#of(bucket).store.info(name);
    if (info === null || info.deleted) return undefined;
    checkContent(info, expected);
    if (maxBytes !== undefined && info.size > maxBytes) throw tooLarge(info, maxBytes);
    const chunks: Uint8Array[] = [];
    for await (const chunk of this.#chunks(bucket, info)) chunks.push(chunk);
    return Buffer.concat(chunks).toString("utf8");
  }

  /** True when the file at `path` holds the object; it is written beside its place and renamed, unless it is the same. */
  async fetch(bucket: string, name: string, path: string, expected?: Content): Promise<true | undefined> {
    const { store } = this.#of(bucket);
    const info = await store.info(name);
    if (info === null || info.deleted) return undefined;
    checkContent(info, expected);
    if ((await contentOf({ path }))?.digest === info.digest) return true;
    await replaceFile(path, async (file) => {
      for await (const bytes of this.#chunks(bucket, info)) await file.appendFile(bytes);
    });
    return true;
  }

  /** Also the mark that it was there, of which a run would leave one a step. */
  async delete(bucket: string, name: string): Promise<void> {
    const { store, manager } = this.#of(bucket);
    await store.delete(name);
    const encoded = Buffer.from(name).toString("base64url");
    const padded = encoded.padEnd(Math.ceil(encoded.length / 4) * 4, "=");
    await manager.streams.purge(`OBJ_${bucket}`, { filter: `$O.${bucket}.M.${padded}` });
  }

  /** By the word of the server that leads; a consumer, which the client's own list is, may be answered by one that has less. */
  async list(bucket: string, below: string): Promise<string[]> {
    const { manager } = this.#of(bucket);
    const prefix = `$O.${bucket}.M.`;
    const { state } = await manager.streams.info(`OBJ_${bucket}`, { subjects_filter: `${prefix}>` });
    const names = Object.keys(state.subjects ?? {}).map((subject) =>
      Buffer.from(subject.slice(prefix.length), "base64url").toString("utf8"),
    );
    return names.filter((name) => name.startsWith(below)).sort();
  }

  /**
   * Asked for one by one of the server that leads. The client reads them through a consumer, which a server that has just
   * died may have been chosen for: that costs ten seconds each time. What is larger than it says is read no further.
   */
  async *#chunks(bucket: string, info: ObjectInfo): AsyncIterable<Uint8Array> {
    const { manager } = this.#of(bucket);
    const subject = `$O.${bucket}.C.${info.nuid}`;
    const hash = createHash("sha256");
    let seq = 1;
    let sizeBytes = 0;
    for (let chunk = 0; chunk < info.chunks; chunk++) {
      // The client's type knows of no subject beside a number; servers do.
      const query = { seq, next_by_subj: subject } as { seq: number };
      const message = await manager.streams.getMessage(`OBJ_${bucket}`, query);
      if (message === null) throw new Error(`object '${info.name}' has lost a part`);
      sizeBytes += message.data.length;
      if (sizeBytes > info.size || message.data.length === 0) throw tooLarge(info, info.size);
      hash.update(message.data);
      yield message.data;
      seq = message.seq + 1;
    }
    if (digestText(hash) !== info.digest) throw new Error(`object '${info.name}' is damaged`);
  }

  #of(bucket: string): Open {
    const open = this.#open.get(bucket);
    if (open === undefined) throw new Error(`bucket '${bucket}' of objects is not open`);
    return open;
  }
}

function checkContent(info: ObjectInfo, expected: Content | undefined): void {
  if (expected === undefined || (info.digest === expected.digest && info.size === expected.sizeBytes)) return;
  throw new Error(`object '${info.name}' is another meanwhile`);
}

function tooLarge(info: ObjectInfo, maxBytes: number): DamagedObject {
  return new DamagedObject(`object '${info.name}' is not the '${maxBytes}' bytes that it may be`);
}

/** Undefined where there is no such file. */
export async function contentOf(source: ObjectSource): Promise<Content | undefined> {
  const hash = createHash("sha256");
  if ("text" in source) {
    return { digest: digestText(hash.update(source.text)), sizeBytes: Buffer.byteLength(source.text) };
  }
  let sizeBytes = 0;
  try {
    for await (const bytes of createReadStream(source.path)) {
      hash.update(bytes as Buffer);
      sizeBytes += (bytes as Buffer).length;
    }
  } catch {
    return undefined;
  }
  return { digest: digestText(hash), sizeBytes };
}

function digestText(hash: Hash): string {
  const digest = hash.digest("base64url");
  return `SHA-256=${digest.padEnd(Math.ceil(digest.length / 4) * 4, "=")}`;
}
