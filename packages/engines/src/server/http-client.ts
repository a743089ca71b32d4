import { type ClientRequest, Agent as HttpAgent, request as httpRequest, type IncomingMessage } from "node:http";
import { Agent as HttpsAgent, request as httpsRequest } from "node:https";
import { type Clock, TreadleError } from "@treadle/contracts";
import { createParser } from "eventsource-parser";

/** Below the 5 s after which uvicorn closes an idle connection: one that both ends let go of at once loses a request. */
const idleMs = 4_000;
const maxAnswerBytes = 256 * 2 ** 20;

export type Answer = { readonly status: number; readonly text: string };

export type CallOptions = {
  readonly body?: unknown;
  readonly query?: Readonly<Record<string, string>>;
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
  /** default: the token goes with the call */
  readonly isAnonymous?: boolean;
};

/** The server took a call and no whole answer came, or none takes calls: it may have done what it was asked. */
export class ConnectionLost extends TreadleError {
  constructor(message: string, cause: unknown) {
    super("service.failed", message, { cause });
  }
}

/** HTTP to one server, with a deadline on every call. */
export class HttpClient {
  readonly url: string;
  readonly #apiKey: string | undefined;
  readonly #timeoutMs: number;
  readonly #clock: Clock;
  readonly #agent: HttpAgent;
  readonly #request: typeof httpRequest;

  constructor(url: string, apiKey: string | undefined, timeoutMs: number, clock: Clock) {
    this.url = url.replace(/\/+$/, "");
    this.#apiKey = apiKey;
    this.#timeoutMs = timeoutMs;
    this.#clock = clock;
    const isSecure = new URL(url).protocol === "https:";
    this.#agent = new (isSecure ? HttpsAgent : HttpAgent)({ keepAlive: true, timeout: idleMs });
    this.#request = isSecure ? httpsRequest : httpRequest;
  }

  close(): void {
    this.#agent.destroy();
  }

  /** Throws `service.failed` where no whole answer comes in time; any status is an answer. */
  call(method: string, path: string, options: CallOptions = {}): Promise<Answer> {
    return this.#exchange(method, path, options);
  }

  #what(method: string, path: string): string {
    return `'${method} ${path}' of ${this.url}`;
  }

  /** `take`, if any, gets what comes of an answer to a call that was done, and the answer has nothing of it. */
  #exchange(method: string, path: string, options: CallOptions, take?: (part: Buffer) => void): Promise<Answer> {
    const { body, query, timeoutMs = this.#timeoutMs, signal, isAnonymous = false } = options;
    const what = this.#what(method, path);
    return new Promise((resolve, reject) => {
      const search = query ? `?${new URLSearchParams(query)}` : "";
      const payload = body === undefined ? undefined : JSON.stringify(body);
      const request: ClientRequest = this.#request(`${this.url}${path}${search}`, {
        method,
        agent: this.#agent,
        signal,
        headers: {
          ...(payload !== undefined && {
            "content-type": "application/json",
            "content-length": Buffer.byteLength(payload),
          }),
          ...(this.#apiKey !== undefined && !isAnonymous && { authorization: `Bearer ${this.#apiKey}` }),
        },
      });
      const late = new TreadleError(
        "service.failed",
        `${what} had no answer within ${timeoutMs} ms; see whether the server is stopped, or raise its deadline in engine`,
      );
      const cancel = this.#clock.after(timeoutMs, () => request.destroy(late), true);
      const fail = (error: unknown) => {
        cancel();
        const isSaid = error instanceof TreadleError;
        reject(isSaid ? error : new ConnectionLost(`${what} has no answer: ${messageOf(error)}`, error));
      };
      request.on("error", fail);
      request.on("response", (response: IncomingMessage) => {
        const parts: Buffer[] = [];
        const takes = isDone(response.statusCode ?? 0) ? take : undefined;
        let sizeBytes = 0;
        response.on("data", (part: Buffer) => {
          sizeBytes += part.length;
          try {
            if (sizeBytes > maxAnswerBytes) throw new Error(`more than ${maxAnswerBytes} bytes came`);
            if (takes) takes(part);
            else parts.push(part);
          } catch (error) {
            fail(error);
            request.destroy();
          }
        });
        response.on("error", fail);
        response.on("close", () => {
          if (!response.complete) return fail(request.errored ?? new Error("the connection ended within the answer"));
          cancel();
          resolve({ status: response.statusCode ?? 0, text: Buffer.concat(parts).toString("utf8") });
        });
      });
      request.end(payload);
    });
  }

  /**
   * The JSON of a call that was done. Throws by what the status says: `config.invalid` where the token or the route is
   * wrong, `engine.invalid-request` where the server refuses the request, `service.failed` for anything else.
   */
  async json(method: string, path: string, options: CallOptions = {}): Promise<unknown> {
    const { status, text } = await this.call(method, path, options);
    if (!isDone(status)) throw this.#refusal(method, path, status, text);
    if (text.trim() === "") return undefined;
    try {
      return JSON.parse(text);
    } catch {
      return text;
    }
  }

  /**
   * The data of each server-sent event before `[DONE]`, as it comes. Throws what `json` throws, also where the stream ends without that
   * event, and what `onData` throws.
   */
  async events(method: string, path: string, options: CallOptions, onData: (data: string) => void): Promise<void> {
    const decoder = new TextDecoder();
    let isWhole = false;
    const parser = createParser({
      onEvent: ({ data }) => {
        if (data === "[DONE]") isWhole = true;
        else if (!isWhole) onData(data);
      },
    });
    const { status, text } = await this.#exchange(method, path, options, (part) =>
      parser.feed(decoder.decode(part, { stream: true })),
    );
    if (!isDone(status)) throw this.#refusal(method, path, status, text);
    if (isWhole) return;
    const what = `${this.#what(method, path)} has no whole answer: its stream ended early`;
    throw new ConnectionLost(what, undefined);
  }

  #refusal(method: string, path: string, status: number, text: string): TreadleError {
    const said = `${this.#what(method, path)} was answered with '${status}': ${text.slice(0, 500)}`;
    if (status === 401 || status === 403)
      return new TreadleError(
        "config.invalid",
        `${said}; set engine.apiKeyVariable to the variable with the server's key`,
      );
    if (status === 404 || status === 405)
      return new TreadleError("config.invalid", `${said}; check engine.url, and that the server has this route`);
    const code = status === 400 || status === 422 ? "engine.invalid-request" : "service.failed";
    return new TreadleError(code, said, { details: { status } });
  }
}

const isDone = (status: number): boolean => status >= 200 && status <= 299;

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));
