/** The main thread's side of the NATS thread: promises and callbacks for its messages. */
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { Worker as Thread } from "node:worker_threads";
import { TreadleError } from "@treadle/contracts";
import { packageFolder } from "@treadle/contracts/package-folder";
import type {
  Content,
  FromThread,
  NatsThreadOptions,
  ObjectSource,
  Presence,
  StoredEntry,
  ThreadFailure,
  ToThread,
  Vouched,
} from "./nats-messages.ts";

/** That something is there already is a result, not an error. */
export type PutOutcome = "put" | "conflict";

type Waiting = { resolve: (value: unknown) => void; reject: (error: unknown) => void };
/** Omits over each member of the union. */
type WithoutId<T> = T extends { id: number } ? Omit<T, "id"> : never;

/**
 * Sources need a loader, which a thread does not inherit, and which is most of its start; told so, they start what was built of
 * them, as they do for workers. `module`: the thread's, below the sources.
 */
export function threadEntry(module: `${string}.ts`): URL {
  const folder = packageFolder(import.meta.url);
  const isCompiled = process.env.TREADLE_COMPILED === "1" || !import.meta.url.endsWith(".ts");
  if (isCompiled) return pathToFileURL(join(folder, "dist", module.replace(/\.ts$/, ".js")));
  const loader = JSON.stringify(import.meta.resolve("tsx/esm/api"));
  const entry = JSON.stringify(pathToFileURL(join(folder, "src", module)).href);
  const text = `import { register } from ${loader}; register(); await import(${entry});`;
  return new URL(`data:text/javascript,${encodeURIComponent(text)}`);
}

type Request = {
  readonly subject: string;
  readonly data: string;
  readonly timeoutMs: number;
  readonly open: (answer: string) => string;
  /** asked where the server, or whoever speaks in its place, says that nobody listens */
  readonly isThere?: () => Promise<boolean>;
};

/** `refused`: what was wrong with an answer that nobody had asked for. */
const noAnswer = (refused?: unknown): TreadleError =>
  new TreadleError("call.timeout", "no answer came over the control plane in time", { cause: refused });

export class NatsConnection {
  readonly #thread: Thread;
  readonly #where: string;
  readonly #waiting = new Map<number, Waiting>();
  readonly #messages = new Map<number, (subject: string, data: string, reply: string | undefined) => void>();
  readonly #connectionListeners: ((isConnected: boolean) => void)[] = [];
  readonly #exited: Promise<void>;
  #isConnected = false;
  #listensOn: readonly string[] = [];
  #lastId = 0;
  #closed: Promise<void> | undefined;
  #opened: Waiting | undefined;

  private constructor(options: NatsThreadOptions) {
    this.#where = options.servers.join(", ");
    this.#thread = new Thread(threadEntry("control-plane/nats-thread.ts"), {
      workerData: options,
      execArgv: [],
      env: {},
    });
    this.#thread.on("message", (message: FromThread) => this.#receive(message));
    this.#exited = new Promise((resolve) => {
      this.#thread.on("error", (cause) => {
        this.#end(new TreadleError("control-plane.unreachable", `the NATS thread failed: ${cause.message}`, { cause }));
      });
      this.#thread.once("exit", () => {
        this.#end(new TreadleError("control-plane.unreachable", `the connection to NATS at ${this.#where} has ended`));
        resolve();
      });
    });
  }

  /** Rejects with `control-plane.unreachable` or `control-plane.refused`. */
  static async open(options: NatsThreadOptions): Promise<NatsConnection> {
    const connection = new NatsConnection(options);
    await new Promise((resolve, reject) => {
      connection.#opened = { resolve, reject };
    });
    return connection;
  }

  get isConnected(): boolean {
    return this.#isConnected;
  }

  /** Hosts at which the server takes clients, as it says; of the last one while none is there. */
  get listensOn(): readonly string[] {
    return this.#listensOn;
  }

  onConnection(listener: (isConnected: boolean) => void): void {
    this.#connectionListeners.push(listener);
  }

  publish(subject: string, data: string): void {
    this.#post({ type: "publish", subject, data });
  }

  /** Resolves when the server knows of it; the returned function ends it, and resolves when the server knows of that. */
  async subscribe(
    subject: string,
    listener: (subject: string, data: string, reply: string | undefined) => void,
    { ofMembers = false }: { readonly ofMembers?: boolean } = {},
  ): Promise<() => Promise<void>> {
    const id = ++this.#lastId;
    this.#messages.set(id, listener);
    await this.#askAs(id, { type: "subscribe", subject, ofMembers });
    return async () => {
      this.#messages.delete(id);
      await this.#ask({ type: "unsubscribe", subscription: id });
    };
  }

  /**
   * The first answer that `open` opens; what it throws on is somebody else's, and the cause of a `call.timeout` where no other
   * comes. Rejects with `node.lost` when nobody listens, as far as `isThere` does not say otherwise.
   */
  async request({ subject, data, timeoutMs, open, isThere }: Request): Promise<string> {
    const id = ++this.#lastId;
    const endMs = performance.now() + timeoutMs;
    let refused: unknown;
    const opened = new Promise<string>((resolve) => {
      this.#messages.set(id, (_, answer) => {
        try {
          resolve(open(answer));
        } catch (error) {
          refused ??= error;
        }
      });
    });
    const silent = this.#askAs(id, { type: "request", subject, data, timeoutMs }) as Promise<never>;
    try {
      return await Promise.race([opened, silent]).catch(async (error: TreadleError) => {
        if (error.code !== "node.lost" || isThere === undefined) throw error;
        if (!(await Promise.race([opened.then(() => true), isThere()]))) throw error;
        const answer = await Promise.race([opened, after(endMs - performance.now())]);
        if (answer === undefined) throw noAnswer();
        return answer;
      });
    } catch (error) {
      throw error instanceof TreadleError && error.code === "call.timeout" ? noAnswer(refused) : error;
    } finally {
      this.#messages.delete(id);
      silent.catch(() => {});
      this.#post({ type: "answered", request: id });
    }
  }

  async openBucket(bucket: string, replicas: number): Promise<void> {
    await this.#ask({ type: "bucket", bucket, replicas });
  }

  /** `isNew`: only where nothing is there. */
  async put(bucket: string, key: string, data: string, isNew = false): Promise<PutOutcome> {
    const outcome = await this.#ask({ type: "put", bucket, key, data, isNew });
    return outcome === "conflict" ? "conflict" : "put";
  }

  get(bucket: string, key: string): Promise<StoredEntry | undefined> {
    return this.#ask({ type: "get", bucket, key }) as Promise<StoredEntry | undefined>;
  }

  /** All entries, or those whose keys begin with `below` and a dot. */
  list(bucket: string, below?: string): Promise<StoredEntry[]> {
    return this.#ask({ type: "list", bucket, below }) as Promise<StoredEntry[]>;
  }

  async purge(bucket: string, below: string): Promise<void> {
    await this.#ask({ type: "purge", bucket, below });
  }

  async openObjects(bucket: string, replicas: number): Promise<void> {
    await this.#ask({ type: "objects", bucket, replicas });
  }

  async putObject(bucket: string, name: string, source: ObjectSource, vouched?: Vouched): Promise<void> {
    await this.#ask({ type: "object-put", bucket, name, vouched, ...source } as WithoutId<ToThread>);
  }

  /** Of what would be put; undefined where there is no such file. */
  content(source: ObjectSource): Promise<Content | undefined> {
    return this.#ask({ type: "content", ...source } as WithoutId<ToThread>) as Promise<Content | undefined>;
  }

  objectNote(bucket: string, name: string): Promise<Vouched | undefined> {
    return this.#ask({ type: "object-note", bucket, name }) as Promise<Vouched | undefined>;
  }

  /** `expected`: what it must be. Rejects with `journal.corrupt` when it is not, or is larger than it may be. */
  objectText(bucket: string, name: string, expected?: Content, maxBytes?: number): Promise<string | undefined> {
    return this.#ask({ type: "object-get", bucket, name, expected, maxBytes }) as Promise<string | undefined>;
  }

  /** Resolves with whether there is one, when the file at `path` holds it. Rejects with `journal.corrupt`. */
  async fetchObject(bucket: string, name: string, path: string, expected?: Content): Promise<boolean> {
    return (await this.#ask({ type: "object-get", bucket, name, path, expected })) === true;
  }

  listObjects(bucket: string, below: string): Promise<string[]> {
    return this.#ask({ type: "object-list", bucket, below }) as Promise<string[]>;
  }

  async hasObject(bucket: string, name: string): Promise<boolean> {
    return (await this.#ask({ type: "object-has", bucket, name })) === true;
  }

  async deleteObject(bucket: string, name: string): Promise<void> {
    await this.#ask({ type: "object-delete", bucket, name });
  }

  /** Resolves when the server has been told; what is returned says something else, or ends it. */
  async present(presence: Presence): Promise<{ become(next: Presence): Promise<void>; end(): void }> {
    const id = ++this.#lastId;
    const become = async (next: Presence) => void (await this.#askAs(id, { type: "present", ...next }));
    await become(presence);
    return { become, end: () => this.#post({ type: "absent", id }) };
  }

  close(): Promise<void> {
    this.#closed ??= (async () => {
      await Promise.race([this.#ask({ type: "close" }).catch(() => {}), this.#exited, after(closeTimeoutMs)]);
      await this.#thread.terminate();
    })();
    return this.#closed;
  }

  #ask(message: WithoutId<ToThread>): Promise<unknown> {
    return this.#askAs(++this.#lastId, message);
  }

  #askAs(id: number, message: WithoutId<ToThread>): Promise<unknown> {
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#post({ ...message, id } as ToThread);
    });
  }

  #post(message: ToThread): void {
    this.#thread.postMessage(message);
  }

  #receive(message: FromThread): void {
    switch (message.type) {
      case "message":
        this.#messages.get(message.id)?.(message.subject, message.data, message.reply);
        break;
      case "connection":
        this.#isConnected = message.isConnected;
        if (message.isConnected) this.#listensOn = message.listensOn;
        this.#opened?.resolve(undefined);
        this.#opened = undefined;
        for (const listener of this.#connectionListeners) listener(message.isConnected);
        break;
      case "settled": {
        const { id, value, failure } = message;
        const waiting = id === 0 ? this.#opened : this.#waiting.get(id);
        this.#waiting.delete(id);
        if (failure === undefined) waiting?.resolve(value);
        else if (failure.kind === "conflict") waiting?.resolve("conflict");
        else waiting?.reject(this.#errorOf(failure));
        break;
      }
    }
  }

  #errorOf({ kind, message }: ThreadFailure): TreadleError {
    switch (kind) {
      case "no-responders":
        return new TreadleError("node.lost", "nobody answers there any more");
      case "timeout":
        return noAnswer();
      case "refused":
        return new TreadleError(
          "control-plane.refused",
          `the NATS server at '${this.#where}' refuses: ${message}; give its key with --cluster or cluster.nats.credentialsFile, or TREADLE_NATS_USER and TREADLE_NATS_PASSWORD, or TREADLE_NATS_TOKEN`,
        );
      case "unreachable":
        return new TreadleError(
          "control-plane.unreachable",
          `no NATS server answers at '${this.#where}': ${message}; start one with 'nats-server -c .treadle/cluster/nats.conf' (after 'treadle cluster init'), or give its address`,
        );
      case "limit":
        return new TreadleError(
          "control-plane.refused",
          `the NATS account at '${this.#where}' may keep no more: ${message}; raise what it may keep ('max_streams', 'max_mem', 'max_file' of its 'jetstream' in the server's configuration: a project takes 1 stream, 3 with durable runs), or remove streams that nobody needs ('nats stream ls')`,
        );
      case "foreign":
        return new TreadleError("control-plane.refused", `at the NATS server at '${this.#where}' ${message}`);
      case "damaged":
        return new TreadleError(
          "journal.corrupt",
          `what the NATS server at '${this.#where}' keeps is damaged: ${message}; forget that run with 'treadle runs --forget', then resume it where its folder still is`,
        );
      default:
        return new TreadleError("control-plane.unreachable", `NATS at '${this.#where}' failed: ${message}`);
    }
  }

  #end(error: TreadleError): void {
    this.#isConnected = false;
    this.#opened?.reject(error);
    this.#opened = undefined;
    for (const waiting of this.#waiting.values()) waiting.reject(error);
    this.#waiting.clear();
    if (this.#closed === undefined) for (const listener of this.#connectionListeners) listener(false);
  }
}

const closeTimeoutMs = 2000;

const after = (delayMs: number): Promise<void> =>
  new Promise((resolve) => {
    setTimeout(resolve, delayMs).unref();
  });
