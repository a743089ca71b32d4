/**
 * Folders and files on their way into sandboxes and out of them, as tar archives in pieces.
 *
 * Owned here: a file for each archive on its way, and each tenant's turns.
 *
 * TF1 nothing is unpacked, and nothing is sent, of an archive before all of it has passed the `ArchiveFilter`: neither the
 *    sandbox's nor the client's tar reads a byte that the other side made up.
 * TF2 archives are in files, and pieces of them in memory: a client is read as fast as its archive is written, and written to as
 *    fast as it reads.
 * TF3 what a tenant's archives take of the disk never exceeds its limit, and few are on their way at once; others wait.
 * TF4 a client that stalls loses its turn, and a client that is gone ends its transfer.
 */
import { once } from "node:events";
import { Readable } from "node:stream";
import * as grpc from "@grpc/grpc-js";
import { ArchiveFilter, type ArchiveLimits } from "../archive/archive-filter.ts";
import type { CheckedArchive, PackOptions } from "../drivers/sandbox-archive.ts";
import { type DownloadMessage, UploadMessage } from "./messages.ts";
import { DiskBudget } from "./output-spool.ts";
import { SpoolFile } from "./spool-file.ts";
import { type EndingCall, goneOf, read, StatusError } from "./status.ts";

export type TransferLimits = ArchiveLimits & {
  /** how long a client may neither send nor read */
  readonly stallMs: number;
};

/** of one tenant */
const mostAtOnce = 8;

type Tenant = { readonly budget: DiskBudget; numRunning: number; readonly waiting: Set<() => void> };

export class Transfers {
  readonly #limits: TransferLimits;
  readonly #tenants = new Map<string, Tenant>();

  constructor(limits: TransferLimits) {
    this.#limits = limits;
  }

  /** `begin` finds, by the first message, whose it is and where it goes. Throws what is wrong with the archive. */
  async upload(
    call: grpc.ServerReadableStream<unknown, unknown>,
    begin: (first: UploadMessage) => {
      readonly tenant: string;
      readonly unpack: (archive: CheckedArchive, signal: AbortSignal) => Promise<void>;
    },
  ): Promise<void> {
    const patience = new Patience(call, this.#limits.stallMs);
    const messages = call[Symbol.asyncIterator]();
    const next = async (): Promise<UploadMessage | undefined> => {
      const { done, value } = await patience.bounds(messages.next());
      return done === true ? undefined : read(UploadMessage, value);
    };
    const first = await next();
    if (first === undefined) throw new StatusError(grpc.status.INVALID_ARGUMENT, "nothing was sent; send an archive");
    const { tenant, unpack } = begin(first);
    await this.#inTurn(tenant, patience.signal, async (archive) => {
      for (let message: UploadMessage | undefined = first; message !== undefined; message = await next())
        archive.push(message.data);
      archive.end();
      const content = Readable.from(archive.pieces());
      await unpack({ isFolder: archive.isFolder, content }, patience.signal);
    });
  }

  /** Throws what the sandbox's files are refused for, before anything is sent. */
  async download(
    call: grpc.ServerWritableStream<unknown, unknown>,
    tenant: string,
    pack: (options: PackOptions) => Promise<void>,
  ): Promise<void> {
    const patience = new Patience(call, this.#limits.stallMs);
    await this.#inTurn(tenant, patience.signal, async (archive) => {
      await pack({ take: (chunk) => archive.push(chunk), signal: patience.signal });
      archive.end();
      for (const data of archive.pieces())
        if (!call.write({ data } satisfies DownloadMessage)) await patience.bounds(once(call, "drain"));
    });
  }

  /** TF3 */
  async #inTurn(tenant: string, signal: AbortSignal, run: (archive: SpooledArchive) => Promise<void>): Promise<void> {
    let own = this.#tenants.get(tenant);
    if (own === undefined) {
      own = { budget: new DiskBudget(this.#limits.bytes), numRunning: 0, waiting: new Set() };
      this.#tenants.set(tenant, own);
    }
    const { waiting } = own;
    signal.throwIfAborted();
    if (own.numRunning < mostAtOnce) own.numRunning++;
    else
      await new Promise<void>((resolve, reject) => {
        waiting.add(resolve);
        signal.addEventListener("abort", () => waiting.delete(resolve) && reject(signal.reason), { once: true });
      });
    const archive = new SpooledArchive(tenant, own.budget, this.#limits);
    try {
      signal.throwIfAborted();
      await run(archive);
    } finally {
      archive.close();
      const [next] = waiting;
      if (next !== undefined) {
        waiting.delete(next);
        next();
      } else if (--own.numRunning === 0) this.#tenants.delete(tenant);
    }
  }
}

/** What has passed the filter, in a file. */
class SpooledArchive {
  readonly #tenant: string;
  readonly #budget: DiskBudget;
  readonly #filter: ArchiveFilter;
  readonly #file = SpoolFile.open();

  constructor(tenant: string, budget: DiskBudget, limits: ArchiveLimits) {
    this.#tenant = tenant;
    this.#budget = budget;
    this.#filter = new ArchiveFilter(limits);
  }

  get isFolder(): boolean {
    return this.#filter.isFolder;
  }

  push(chunk: Uint8Array): void {
    for (const piece of this.#filter.push(chunk)) this.#keep(piece);
  }

  end(): void {
    for (const piece of this.#filter.end()) this.#keep(piece);
  }

  pieces(): Generator<Buffer> {
    return this.#file!.pieces();
  }

  close(): void {
    this.#budget.give(this.#file?.bytes ?? 0);
    this.#file?.close();
  }

  #keep(piece: Buffer): void {
    const { usedBytes, limitBytes } = this.#budget;
    if (!this.#budget.take(piece.length))
      throw new StatusError(
        grpc.status.RESOURCE_EXHAUSTED,
        `the archives that tenant '${this.#tenant}' moves take '${usedBytes}' bytes, of ${limitBytes} that they may; move less at once, or raise limits.transferMib`,
      );
    if (this.#file?.append(piece)) return;
    this.#budget.give(piece.length);
    throw new StatusError(
      grpc.status.RESOURCE_EXHAUSTED,
      "the archive could not be kept: the service's disk is full; make room in its TMPDIR",
    );
  }
}

/** TF4 */
class Patience {
  readonly #gone: AbortSignal;
  readonly #stalled = new AbortController();
  readonly #stallMs: number;
  readonly signal: AbortSignal;

  constructor(call: EndingCall, stallMs: number) {
    this.#gone = goneOf(call);
    this.#stallMs = stallMs;
    this.signal = AbortSignal.any([this.#gone, this.#stalled.signal]);
  }

  /** What the client does next: in time, or it is over. */
  async bounds<Result>(move: Promise<Result>): Promise<Result> {
    const stalled = (): void =>
      this.#stalled.abort(
        new StatusError(
          grpc.status.DEADLINE_EXCEEDED,
          `the client has neither sent nor read for ${this.#stallMs / 1000} s; begin again`,
        ),
      );
    const timer = setTimeout(stalled, this.#stallMs);
    let over = (): void => {};
    const ended = new Promise<never>((_, reject) => {
      over = () => reject(this.signal.reason);
    });
    this.signal.addEventListener("abort", over, { once: true });
    if (this.signal.aborted) over();
    try {
      return await Promise.race([move, ended]);
    } finally {
      clearTimeout(timer);
      this.signal.removeEventListener("abort", over);
    }
  }
}
