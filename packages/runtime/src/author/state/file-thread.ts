/**
 * Writes large files, and sums them up, beside the main thread, which computes meanwhile.
 *
 * Owner of: a thread that is started with the first large file and stays; it serves one request after the other.
 * The thread's source is a string so that it starts without a loader.
 */
import { Worker as Thread } from "node:worker_threads";

const source = `
const { parentPort } = require("node:worker_threads");
const { createHash } = require("node:crypto");
const { closeSync, fdatasyncSync, openSync, writeSync } = require("node:fs");
const files = new Map();
const take = (id) => {
  const file = files.get(id);
  files.delete(id);
  return file;
};
const acts = {
  open({ id, path }) {
    files.set(id, { fd: openSync(path, "w", 0o600), hash: createHash("sha256") });
  },
  write({ id, bytes }) {
    const { fd, hash } = files.get(id);
    hash.update(bytes);
    for (let at = 0; at < bytes.length; ) at += writeSync(fd, bytes, at);
  },
  end({ id }) {
    const { fd, hash } = take(id);
    try {
      fdatasyncSync(fd);
    } finally {
      closeSync(fd);
    }
    return hash.digest("hex");
  },
  abandon: ({ id }) => closeSync(take(id).fd),
};
parentPort.on("message", (message) => {
  try {
    const result = acts[message.act](message);
    const { buffer } = message.bytes ?? {};
    parentPort.postMessage({ result, buffer }, buffer ? [buffer] : []);
  } catch ({ message, code }) {
    parentPort.postMessage({ failure: { message, code } });
  }
});
`;

type Request = { readonly id: number } & (
  | { readonly act: "open"; readonly path: string }
  | { readonly act: "write"; readonly bytes: Uint8Array }
  | { readonly act: "end" | "abandon" }
);
type Reply = {
  readonly result?: string | undefined;
  readonly buffer?: ArrayBuffer | undefined;
  readonly failure?: { readonly message: string; readonly code?: string } | undefined;
};
type Waiting = { readonly resolve: (result: string | undefined) => void; readonly reject: (error: Error) => void };

export class FileThread {
  readonly #thread = new Thread(source, { eval: true });
  readonly #waiting: Waiting[] = [];
  #numFiles = 0;
  /** a buffer that the thread has given back */
  #spare: ArrayBuffer | undefined;

  constructor() {
    this.#thread.unref();
    this.#thread.on("message", (reply: Reply) => this.#replied(reply));
    this.#thread.on("error", (error) => {
      for (const { reject } of this.#waiting.splice(0)) reject(error);
    });
  }

  /** Answers with what the file is called from then on. */
  async open(path: string): Promise<number> {
    const id = ++this.#numFiles;
    await this.#ask({ act: "open", id, path });
    return id;
  }

  /** The bytes are copied before this returns. */
  write(id: number, piece: Uint8Array): Promise<unknown> {
    const buffer = this.#spare?.byteLength === piece.byteLength ? this.#spare : new ArrayBuffer(piece.byteLength);
    this.#spare = undefined;
    const bytes = new Uint8Array(buffer);
    bytes.set(piece);
    return this.#ask({ act: "write", id, bytes }, [buffer]);
  }

  /** Resolves with the file's SHA-256 when it is on the disk. */
  async end(id: number): Promise<string> {
    return (await this.#ask({ act: "end", id })) as string;
  }

  async abandon(id: number): Promise<void> {
    await this.#ask({ act: "abandon", id });
  }

  #ask(request: Request, transfer: readonly ArrayBuffer[] = []): Promise<string | undefined> {
    return new Promise((resolve, reject) => {
      if (this.#waiting.length === 0) this.#thread.ref(); // somebody waits
      this.#waiting.push({ resolve, reject });
      this.#thread.postMessage(request, [...transfer]);
    });
  }

  #replied({ result, buffer, failure }: Reply): void {
    const waiting = this.#waiting.shift();
    if (this.#waiting.length === 0) this.#thread.unref();
    this.#spare = buffer ?? this.#spare;
    if (failure) waiting?.reject(Object.assign(new Error(failure.message), { code: failure.code }));
    else waiting?.resolve(result);
  }
}
