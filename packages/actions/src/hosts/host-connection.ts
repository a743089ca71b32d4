/**
 * One host of sandboxes, as an action service reaches it: attached, or away.
 *
 * Owned here: the attachment, the calls under it, and when the host is tried again.
 *
 * AH1 a host that says nothing for `silenceMs` is away, whatever its connection says.
 * AH2 when an attachment ends, every call under it fails, and whatever was made under it is lost, for good: the host closes it
 *    (RH2), and no later attachment brings it back.
 */
import { setMaxListeners } from "node:events";
import { setTimeout as delay } from "node:timers/promises";
import * as grpc from "@grpc/grpc-js";
import { type ErrorCode, errorCatalogue, TreadleError } from "@treadle/contracts";
import type { z } from "zod";
import { hostDefinition } from "../grpc/service-definition.ts";
import { detailsOf } from "../grpc/status.ts";
import { AttachEvent, type HostBeat, HostShape, hostProtocol, lossKey, maxHostMessageBytes } from "./host-messages.ts";

export type HostOptions = {
  /** host:port or unix:/path */
  readonly address: string;
  /** PEM; an encrypted connection to a host that this authority vouches for */
  readonly authority?: Buffer | undefined;
  readonly token?: string | undefined;
  /** how long it may say nothing */
  readonly silenceMs?: number | undefined;
};

export type Attached = {
  readonly driver: string;
  readonly isolation: string;
  readonly diskLacks: string | undefined;
  readonly shape: HostShape;
};

/** What is under way with a host, and what it said last. */
export type Attachment = {
  readonly id: string;
  readonly is: Attached;
  /** aborts when it ends, with `sandbox.failed` and why */
  readonly ended: AbortSignal;
  beat: HostBeat | undefined;
};

const defaultSilenceMs = 15_000;
const shortestWaitMs = 250;
const longestWaitMs = 10_000;

const refusals = new Set([
  grpc.status.UNAUTHENTICATED,
  grpc.status.PERMISSION_DENIED,
  grpc.status.UNIMPLEMENTED,
  grpc.status.INVALID_ARGUMENT,
]);

type Method = (...args: unknown[]) => unknown;
type Client = InstanceType<ReturnType<typeof grpc.makeClientConstructor>>;

export class HostConnection {
  readonly name: string;
  readonly #options: HostOptions;
  readonly #client: Client;
  readonly #metadata = new grpc.Metadata();
  readonly #closing = new AbortController();
  #attachment: Attachment | undefined;
  #why = "it has not answered yet";
  #refuses = false;
  #looping: Promise<void> | undefined;

  constructor(name: string, options: HostOptions) {
    this.name = name;
    this.#options = options;
    const { address, authority, token } = options;
    if (token !== undefined) this.#metadata.set("authorization", `Bearer ${token}`);
    const Client = grpc.makeClientConstructor(hostDefinition(), "SandboxHost");
    const credentials =
      authority === undefined ? grpc.credentials.createInsecure() : grpc.credentials.createSsl(authority);
    this.#client = new Client(address, credentials, {
      "grpc.keepalive_time_ms": 10_000,
      "grpc.keepalive_timeout_ms": 5000,
      "grpc.max_receive_message_length": maxHostMessageBytes,
      "grpc.max_send_message_length": maxHostMessageBytes,
      "grpc.max_reconnect_backoff_ms": longestWaitMs,
    });
  }

  get address(): string {
    return this.#options.address;
  }

  get attachment(): Attachment | undefined {
    return this.#attachment;
  }

  /** why it is away */
  get why(): string {
    return this.#why;
  }

  /** It is there, and takes no calls of this service until somebody mends a configuration. */
  get refuses(): boolean {
    return this.#refuses;
  }

  /** Attaches, and again whenever that ends, until `close`. `service`: of this process, random. */
  keep(service: string, on: { readonly attached: (is: Attached) => void; readonly lost: (why: string) => void }): void {
    this.#looping ??= (async () => {
      let waitMs = shortestWaitMs;
      while (!this.#closing.signal.aborted) {
        this.#why = await this.#attach(service, on.attached);
        const wasAttached = this.#attachment !== undefined;
        this.#attachment = undefined;
        if (wasAttached && !this.#closing.signal.aborted) on.lost(this.#why);
        waitMs = wasAttached ? shortestWaitMs : Math.min(longestWaitMs, waitMs * 2);
        await delay(waitMs, undefined, { signal: this.#closing.signal }).catch(() => {});
      }
    })();
  }

  async close(): Promise<void> {
    this.#closing.abort();
    await this.#looping;
    this.#client.close();
  }

  /** Resolves with why it ended. */
  #attach(service: string, onAttached: (is: Attached) => void): Promise<string> {
    const { silenceMs = defaultSilenceMs } = this.#options;
    return new Promise((resolve) => {
      const lost = new AbortController();
      setMaxListeners(0, lost.signal); // one for each call
      const call = (this.#client["Attach"] as Method).call(
        this.#client,
        { protocol: hostProtocol, service, host: this.name },
        this.#metadata,
      ) as grpc.ClientReadableStream<unknown>;
      const end = (why: string): void => {
        clearTimeout(silence);
        this.#closing.signal.removeEventListener("abort", leave);
        lost.abort(new TreadleError("sandbox.failed", `host '${this.name}' was lost: ${why}`));
        resolve(why);
        call.cancel();
      };
      const leave = (): void => end("this service ends");
      const silence = setTimeout(() => end(`it has said nothing for ${silenceMs / 1000} s`), silenceMs); // AH1
      this.#closing.signal.addEventListener("abort", leave);
      if (this.#closing.signal.aborted) leave();
      call.on("data", (message: unknown) => {
        silence.refresh();
        const event = AttachEvent.safeParse(message);
        if (!event.success) return end("it says what a host does not say; install the same version of Treadle on both");
        if (event.data.event === "beat") {
          if (this.#attachment !== undefined) this.#attachment.beat = event.data.beat;
          return;
        }
        const { attachment: id, driver, isolation, diskLacks, ...machine } = event.data.attached;
        const shape = HostShape.safeParse(machine);
        if (!shape.success || this.#attachment !== undefined) return end("it describes itself as no machine");
        const is = { driver, isolation, diskLacks, shape: shape.data };
        this.#refuses = false;
        this.#attachment = { id, is, ended: lost.signal, beat: undefined };
        onAttached(is);
      });
      call.on("error", (error: grpc.ServiceError) => {
        this.#refuses = refusals.has(error.code);
        end(detailsOf(error));
      });
      call.on("end", () => end("it ended"));
    });
  }

  /** Throws what the host throws, `sandbox.failed` when `under` ends, and the reason of `signal`; these cancel the call. */
  ask<Schema extends z.ZodType>(
    under: Attachment,
    method: string,
    request: object,
    schema: Schema,
    { signal, onLoss }: { readonly signal?: AbortSignal | undefined; readonly onLoss?: (loss: string) => void } = {},
  ): Promise<z.infer<Schema>> {
    return new Promise((resolve, reject) => {
      const ends = AbortSignal.any([under.ended, ...(signal === undefined ? [] : [signal])]);
      if (ends.aborted) return reject(ends.reason);
      const leave = (): void => {
        reject(ends.reason);
        call.cancel();
      };
      const call = (this.#client[method] as Method).call(
        this.#client,
        { attachment: under.id, ...request },
        this.#metadata,
        {},
        (error: grpc.ServiceError | null, reply: unknown) => {
          ends.removeEventListener("abort", leave);
          if (error !== null) return reject(this.errorOf(error, onLoss));
          const parsed = schema.safeParse(reply);
          if (parsed.success) resolve(parsed.data);
          else reject(new TreadleError("sandbox.failed", `host '${this.name}' answers what is no answer to ${method}`));
        },
      ) as grpc.ClientUnaryCall;
      ends.addEventListener("abort", leave);
    });
  }

  /** A command's stream; it ends with `under`, with an error. */
  exec(under: Attachment): grpc.ClientDuplexStream<object, unknown> {
    const call = (this.#client["Exec"] as Method).call(this.#client, this.#metadata) as grpc.ClientDuplexStream<
      object,
      unknown
    >;
    const leave = (): void => call.cancel();
    under.ended.addEventListener("abort", leave);
    call.on("close", () => under.ended.removeEventListener("abort", leave));
    if (under.ended.aborted) leave();
    return call;
  }

  errorOf(error: grpc.ServiceError, onLoss?: (loss: string) => void): TreadleError {
    const loss = error.metadata?.get(lossKey)[0];
    if (loss !== undefined) onLoss?.(decoded(String(loss)));
    const code = String(error.metadata?.get("treadle-code")[0] ?? "");
    if (Object.hasOwn(errorCatalogue, code)) return new TreadleError(code as ErrorCode, error.details);
    return new TreadleError("sandbox.failed", `host '${this.name}': ${detailsOf(error)}`);
  }
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text).slice(0, 2000);
  } catch {
    return "its host does not say why";
  }
}
