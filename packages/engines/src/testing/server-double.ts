import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { setImmediate, setTimeout } from "node:timers/promises";
import { z } from "zod";
import { draw, TinyAdapter, TinyModel } from "./tiny-model.ts";

/** What happens to a call instead of, or after, what it asks for. */
export type Fault =
  | { readonly type: "status"; readonly status: number; readonly text?: string }
  /** no answer, ever */
  | { readonly type: "hang" }
  /** the beginning of an answer, and then the connection ends */
  | { readonly type: "half" }
  /** the connection ends without an answer; what was asked is done, or not */
  | { readonly type: "reset"; readonly isDone?: boolean }
  /** the answer to another question; of a stream, its events */
  | { readonly type: "answer"; readonly body: unknown };

export type DoubleOptions = {
  /** folder of a tiny model (`writeTinyModel`) */
  readonly model: string;
  /** default: a free one */
  readonly port?: number | undefined;
  /** by which it says that it serves its model */
  readonly name?: string | undefined;
  /** goes with each call to a guarded route */
  readonly apiKey?: string | undefined;
  /** whether log-probabilities are of temperature 1 whatever is sampled */
  readonly isRaw?: boolean | undefined;
  /** most tokens of a sequence; default: as the model's configuration says */
  readonly contextLength?: number | undefined;
  /** paths that this server does not have */
  readonly without?: readonly string[] | undefined;
  /** answers do not say of which weights they are, as older servers' do not */
  readonly isUnlabelled?: boolean | undefined;
  /** requests that are ended are answered with an error, as those that have not begun are by a real server */
  readonly refusesAborted?: boolean | undefined;
  readonly isDeterministic?: boolean | undefined;
  /** started so that it can give its memory back; default true */
  readonly canRelease?: boolean | undefined;
  /** what SGLang says that its weights take, as newer versions do; default: it says nothing of them */
  readonly weightsGiB?: number | undefined;
  /** adapters that it takes: their largest rank, and how many it has at once; default: none */
  readonly adapters?: { readonly maxRank: number; readonly most: number } | undefined;
  /** that each token takes */
  readonly tokenMs?: number | undefined;
  /** tokens that go as one event of a stream; default 1 */
  readonly streamInterval?: number | undefined;
  /** of each stream, what follows the first event waits until somebody has asked for the name of the weights, as an engine does that tells of it */
  readonly waitsForQuestions?: boolean | undefined;
  /** each event of SGLang's streams has all tokens so far */
  readonly isCumulative?: boolean | undefined;
  /** what the server says that it serves; default: what the model's configuration says */
  readonly architecture?: string | undefined;
};

export type Reply = {
  readonly status?: number;
  readonly body?: unknown;
  /** its events were sent, all but the last */
  readonly isStream?: boolean;
};

export type Route = {
  readonly isGuarded: boolean;
  /** what a body may have; anything else is refused */
  readonly body?: z.ZodType;
  /** `stream` sends an event */
  readonly handle: (body: never, query: URLSearchParams, stream: (event: unknown) => void) => Promise<Reply> | Reply;
};

/** What a request asks for, in no server's words. */
export type Asked = {
  readonly id: string;
  readonly tokens: readonly number[];
  readonly maxTokens: number;
  readonly temperature: number;
  readonly seed: number;
  /** of the first draw; a real server's are by position, or counted in each request */
  readonly drawsFrom: number;
  readonly salt: string;
  readonly adapter?: string | undefined;
  readonly isStop: (token: number) => boolean;
  /** what goes on has chosen since it was told last */
  readonly told?: ((part: Pick<Answered, "tokens" | "logprobs">) => void) | undefined;
};

export type Answered = {
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
  readonly reason: "stop" | "length" | "abort";
  readonly topLogprob: number;
};

export class Refusal extends Error {
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

const ModelConfig = z.object({
  architectures: z.array(z.string()),
  max_position_embeddings: z.int(),
  eos_token_id: z.int().optional(),
});

/** Parts of its memory that a server may release without the rest. */
export type Memory = "weights" | "cache";
const memories: readonly Memory[] = ["weights", "cache"];

/**
 * An inference server for tests: real HTTP on a loopback port, a tiny model whose weights come from the folders that it is
 * told to load, and the phases of a real server. It refuses what a real one would refuse or break at: unknown fields, a
 * cache flushed and memory released while requests run, tokens beyond vocabulary and context, a generation without weights.
 */
export abstract class ServerDouble {
  protected readonly options: DoubleOptions;
  protected model!: TinyModel;
  protected contextLength = 0;
  protected endToken: number | undefined;
  protected architecture = "";
  protected label = "default";
  /** how often somebody has asked for the name of the weights */
  protected numQuestions = 0;
  protected isPaused = false;
  /** whose memory is released */
  protected readonly asleep = new Set<Memory>();
  /** the bodies of generations, as they came */
  readonly generations: unknown[] = [];
  /** methods and paths, as they came */
  readonly calls: string[] = [];
  readonly #running = new Map<string, { isAborted: boolean; readonly adapter: string | undefined }>();
  readonly #faults: { readonly path: string; readonly fault: Fault; left: number }[] = [];
  readonly #cache = new Map<string, Float64Array>();
  readonly #adapters = new Map<string, TinyAdapter>();
  #server: Server | undefined;
  #port = 0;
  #isHeld = false;
  #isFrozen = false;
  #ignoresLoads = false;
  #isReleased = false;
  #routes: Readonly<Record<string, Route>> | undefined;
  #changed: Promise<void> = Promise.resolve();
  #tell: () => void = () => {};

  constructor(options: DoubleOptions) {
    this.options = options;
    this.#port = options.port ?? 0;
    this.#renew();
  }

  protected abstract routes(): Readonly<Record<string, Route>>;
  protected abstract errorBody(message: string): unknown;

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  get numRunning(): number {
    return this.#running.size;
  }

  get vocabSize(): number {
    return this.model.vocabSize;
  }

  /** Log-probabilities of tokens by the weights that the server has, and an adapter of it. */
  score(tokens: readonly number[], temperature = 1, adapter?: string): Float32Array {
    return this.#with(adapter).score(tokens, temperature);
  }

  /** Names of the adapters that it has. */
  get adapters(): string[] {
    return [...this.#adapters.keys()];
  }

  #with(adapter: string | undefined): TinyModel {
    if (adapter === undefined) return this.model;
    const found = this.#adapters.get(adapter);
    if (found === undefined) throw new Refusal(this.noSuchAdapter, `The model \`${adapter}\` does not exist.`);
    return this.model.adapted(found);
  }

  /** status of a request that names an adapter which the server does not have */
  protected abstract readonly noSuchAdapter: number;

  /** Refuses what it was not started for, and never replaces an adapter, as requests may compute with it. */
  protected async loadAdapter(name: string, folder: string): Promise<void> {
    const { adapters } = this.options;
    if (adapters === undefined) throw new Refusal(400, "LoRA is not enabled");
    if (this.asleep.has("weights")) throw new Refusal(500, "an adapter is loaded into memory that is released");
    if (this.#adapters.has(name)) throw new Refusal(400, `The lora adapter '${name}' has already been loaded.`);
    if (this.#adapters.size >= adapters.most)
      throw new Refusal(400, `${adapters.most} adapters are loaded, and no more fit`);
    const found = await TinyAdapter.read(folder);
    if (found.rank > adapters.maxRank)
      throw new Refusal(400, `LoRA rank ${found.rank} is greater than max_lora_rank ${adapters.maxRank}`);
    this.model.adapted(found);
    if (!this.#ignoresLoads) this.#adapters.set(name, found);
  }

  protected unloadAdapter(name: string): void {
    if (!this.#adapters.delete(name)) throw new Refusal(400, `The lora adapter '${name}' cannot be found.`);
    if ([...this.#running.values()].some(({ adapter }) => adapter === name))
      throw new Refusal(500, `adapter '${name}' was dropped while requests compute with it`);
  }

  /** Begins, or begins again after `kill`, with the weights of its own folder. */
  async start(): Promise<this> {
    const text = await readFile(join(this.options.model, "config.json"), "utf8");
    const config = ModelConfig.parse(JSON.parse(text));
    this.model = await TinyModel.read(this.options.model);
    this.contextLength = this.options.contextLength ?? config.max_position_embeddings;
    this.architecture = this.options.architecture ?? config.architectures[0]!;
    this.endToken = config.eos_token_id;
    this.label = "default";
    this.isPaused = false;
    this.asleep.clear();
    this.#isReleased = false;
    this.#cache.clear();
    this.#adapters.clear();
    const server = createServer((request, response) => void this.#serve(request, response));
    this.#server = server;
    await new Promise<void>((resolve) => server.listen(this.#port, "127.0.0.1", resolve));
    this.#port = (server.address() as AddressInfo).port;
    return this;
  }

  /** As SIGKILL does it: no connection is left, and nobody listens. */
  async kill(): Promise<void> {
    const server = this.#server;
    if (!server) return;
    this.#server = undefined;
    for (const running of this.#running.values()) running.isAborted = true;
    this.letGo();
    const closed = new Promise<void>((resolve) => server.close(() => resolve()));
    server.closeAllConnections();
    await closed;
  }

  /** As SIGSTOP does it: connections are accepted, and nothing answers. */
  freeze(): void {
    this.#isFrozen = true;
  }

  /** Nothing is chosen until `letGo`. */
  hold(): void {
    this.#isHeld = true;
  }

  letGo(): void {
    this.#isHeld = false;
    this.notify();
  }

  /** The next calls of a path have this fault. */
  inject(path: string, fault: Fault, times = 1): void {
    this.#faults.push({ path, fault, left: times });
  }

  /** Loads have no effect from now on; it says that they succeeded. */
  ignoreLoads(): void {
    this.#ignoresLoads = true;
  }

  /** What another client does to the weights' name. */
  relabel(label: string): void {
    this.label = label;
  }

  /** Returns when so many requests run. */
  async running(count: number): Promise<void> {
    while (this.#running.size < count) await this.#changed;
  }

  protected named(): string {
    this.numQuestions++;
    this.notify();
    return this.label;
  }

  protected notify(): void {
    this.#tell();
    this.#renew();
  }

  protected async complete(asked: Asked): Promise<Answered> {
    const { id, tokens, maxTokens, temperature, seed, drawsFrom, salt, adapter, isStop, told } = asked;
    const { streamInterval = 1, tokenMs } = this.options;
    let numTold = 0;
    if (this.#isReleased || this.asleep.size > 0)
      throw new Refusal(500, "the engine has no weights, or no cache: its memory is released");
    const outside = tokens.find((token) => token < 0 || token >= this.vocabSize);
    if (outside !== undefined) throw new Refusal(400, `Token id ${outside} is out of vocabulary`);
    if (tokens.length + maxTokens > this.contextLength)
      throw new Refusal(400, `${tokens.length} + ${maxTokens} tokens where the context is ${this.contextLength}`);
    if (this.#running.has(id)) throw new Refusal(400, `request ${id} is running`);
    const chosen: number[] = [];
    const logprobs: number[] = [];
    let topLogprob = 0;
    this.#with(adapter);
    const running = { isAborted: false, adapter };
    const answer = (reason: Answered["reason"]): Answered => ({ tokens: chosen, logprobs, reason, topLogprob });
    // A request that comes during a pause waits outside.
    while (this.isPaused) await this.#changed;
    this.#running.set(id, running);
    this.notify();
    try {
      while (true) {
        await (tokenMs === undefined ? setImmediate() : setTimeout(tokenMs));
        while (this.#isHeld && !running.isAborted) await this.#changed;
        if (running.isAborted && this.options.refusesAborted) throw new Refusal(400, "Abort");
        if (running.isAborted) return answer("abort");
        const own = temperature === 0 ? 1 : temperature;
        const model = this.#with(adapter);
        const all = model.next([...tokens, ...chosen], own, this.#cache, salt);
        const token = draw(all, temperature, seed, drawsFrom + chosen.length);
        const shown = this.options.isRaw ? model.next([...tokens, ...chosen], 1, this.#cache, salt) : all;
        if (chosen.length === 0) topLogprob = Math.max(...shown);
        chosen.push(token);
        logprobs.push(shown[token]!);
        if (isStop(token)) return answer("stop");
        if (chosen.length === maxTokens) return answer("length");
        if (!told || chosen.length - numTold < streamInterval) continue;
        told({ tokens: chosen.slice(numTold), logprobs: logprobs.slice(numTold) });
        const isFirst = numTold === 0;
        numTold = chosen.length;
        const { numQuestions } = this;
        const waits = this.options.waitsForQuestions && isFirst;
        while (waits && numQuestions === this.numQuestions && !running.isAborted) await this.#changed;
      }
    } finally {
      this.#running.delete(id);
      this.notify();
    }
  }

  protected abortWhere(isMeant: (id: string) => boolean): void {
    for (const [id, running] of this.#running) if (isMeant(id)) running.isAborted = true;
    this.notify();
  }

  protected async pauseAll(): Promise<void> {
    this.isPaused = true;
    this.abortWhere(() => true);
    while (this.#running.size > 0) await this.#changed;
  }

  protected resumeAll(): void {
    this.isPaused = false;
    this.notify();
  }

  protected flush(): void {
    if (this.#running.size > 0) throw new Refusal(400, "the cache is not flushed while requests run");
    this.#cache.clear();
  }

  protected async load(folder: string): Promise<void> {
    if (this.#running.size > 0) throw new Refusal(400, "weights are loaded while requests run");
    if (this.asleep.has("weights")) throw new Refusal(500, "weights are loaded into memory that is released");
    if (this.#ignoresLoads) return;
    this.#isReleased = false;
    await this.model.load(folder);
  }

  protected fallAsleep(memory: readonly Memory[] = memories): void {
    if (this.#running.size > 0) throw new Refusal(500, "memory is released while requests run: the engine is dead");
    for (const each of memory) this.asleep.add(each);
    if (memory.includes("cache")) this.#cache.clear();
  }

  /** What its weights were is lost. */
  protected wakeUp(memory: readonly Memory[] = memories): void {
    for (const each of memory) if (this.asleep.delete(each) && each === "weights") this.#isReleased = true;
  }

  protected checksum(): string {
    const hash = createHash("sha256");
    for (const { name, data } of this.model.tensors)
      hash.update(name).update(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    return hash.digest("hex");
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { pathname, searchParams } = new URL(request.url ?? "/", this.url);
    const method = request.method ?? "GET";
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    this.calls.push(`${method} ${pathname}`);
    if (this.#isFrozen) return;
    const fault = this.#faultOf(method, pathname);
    if (fault?.type === "hang") return;
    if (fault?.type === "reset" && !fault.isDone) return void response.destroy();
    if (fault?.type === "status") return send(response, fault.status, fault.text ?? "a fault of the test's");
    const asked = Buffer.concat(parts).toString("utf8");
    const events: string[] = [];
    const stream = (event: unknown) => {
      events.push(`data: ${typeof event === "string" ? event : JSON.stringify(event)}\n\n`);
      if (fault?.type === "half") return;
      if (!response.headersSent) response.writeHead(200, { "content-type": "text/event-stream" });
      response.write(events.at(-1));
    };
    if (fault?.type === "answer" && /"stream": ?true/.test(asked)) {
      for (const event of fault.body as unknown[]) stream(event);
      return void response.end();
    }
    if (fault?.type === "answer") return send(response, 200, fault.body);
    let status = 200;
    let body: unknown;
    try {
      const reply = await this.#handle(method, pathname, searchParams, asked, request.headers.authorization, stream);
      status = reply.status ?? 200;
      body = reply.body;
      if (reply.isStream) stream("[DONE]");
    } catch (error) {
      status = error instanceof Refusal ? error.status : 500;
      body = this.errorBody((error as Error).message);
      if (events.length > 0) for (const event of [body, "[DONE]"]) stream(event);
    }
    if (fault?.type === "reset") return void response.destroy();
    if (fault?.type === "half" && events.length > 0) {
      const text = events.join("");
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.write(text.slice(0, text.length / 2), () => response.destroy());
      return;
    }
    if (events.length > 0) return void response.end();
    if (fault?.type === "half") {
      const text = JSON.stringify(body);
      response.writeHead(status, { "content-type": "application/json", "content-length": Buffer.byteLength(text) });
      response.write(text.slice(0, text.length / 2), () => response.destroy());
      return;
    }
    send(response, status, body);
  }

  async #handle(
    method: string,
    path: string,
    query: URLSearchParams,
    text: string,
    authorization: string | undefined,
    stream: (event: unknown) => void,
  ): Promise<Reply> {
    this.#routes ??= this.routes();
    const isThere = !this.options.without?.includes(path);
    const methods = Object.keys(this.#routes).filter((key) => key.endsWith(` ${path}`));
    const { apiKey } = this.options;
    const isGuarded = methods.length === 0 || methods.some((key) => this.#routes?.[key]?.isGuarded);
    if (apiKey !== undefined && isGuarded && authorization !== `Bearer ${apiKey}`)
      throw new Refusal(401, "Unauthorized");
    if (!isThere || methods.length === 0) throw new Refusal(404, "Not Found");
    const route = this.#routes[`${method} ${path}`];
    if (!route) throw new Refusal(405, "Method Not Allowed");
    let body: unknown;
    if (route.body) {
      const parsed = route.body.safeParse(text === "" ? undefined : JSON.parse(text));
      if (!parsed.success) throw new Refusal(400, z.prettifyError(parsed.error));
      body = parsed.data;
    } else if (text !== "") throw new Refusal(400, `${path} takes no body`);
    return route.handle(body as never, query, stream);
  }

  #faultOf(method: string, path: string): Fault | undefined {
    const found = this.#faults.find((one) => one.path === path && one.left > 0 && method !== "DELETE");
    if (found) found.left--;
    return found?.fault;
  }

  #renew(): void {
    this.#changed = new Promise((resolve) => {
      this.#tell = resolve;
    });
  }
}

function send(response: ServerResponse, status: number, body: unknown): void {
  const text = typeof body === "string" ? body : body === undefined ? "" : JSON.stringify(body);
  response.writeHead(status, { "content-type": typeof body === "string" ? "text/plain" : "application/json" });
  response.end(text);
}
