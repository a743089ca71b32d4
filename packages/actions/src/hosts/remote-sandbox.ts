/** A sandbox on another machine. */
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { Readable } from "node:stream";
import type * as grpc from "@grpc/grpc-js";
import { TreadleError } from "@treadle/contracts";
import { OpenSandbox } from "../drivers/open-sandbox.ts";
import {
  type CommandSignal,
  defaultLimits,
  type ExecRequest,
  type ExecResult,
  type Snapshot,
} from "../drivers/sandbox.ts";
import { longestTimerMs } from "../formulation/action-spec.ts";
import { maxInputBytes } from "../grpc/messages.ts";
import type { Attachment, HostConnection } from "./host-connection.ts";
import { Done, ExecEvent, ReadFileReply, TakeSnapshotReply } from "./host-messages.ts";

export class RemoteSandbox extends OpenSandbox {
  readonly id: string;
  readonly stateFolder: string;
  readonly #host: HostConnection;
  readonly #under: Attachment;
  #loss: string | undefined;

  constructor(id: string, stateFolder: string, host: HostConnection, under: Attachment, forget: () => void) {
    super(forget);
    this.id = id;
    this.stateFolder = stateFolder;
    this.#host = host;
    this.#under = under;
  }

  override usedBytes(): number | undefined {
    return this.#under.ended.aborted ? undefined : this.#under.beat?.usedBytes.get(this.id);
  }

  protected lossOf(): string | undefined {
    if (this.#under.ended.aborted) return (this.#under.ended.reason as Error).message;
    return this.#loss ?? this.#under.beat?.losses.get(this.id);
  }

  writeFile(path: string, data: string | Uint8Array): Promise<void> {
    return this.#ask("WriteFile", { path, data: Buffer.from(data as Uint8Array) }, Done).then(() => {});
  }

  async readFile(path: string, maxBytes?: number): Promise<Buffer> {
    const { data } = await this.#ask("ReadFile", { path, max_bytes: maxBytes }, ReadFileReply);
    return asBuffer(data);
  }

  protected async copy({
    maxBytes,
    signal,
  }: {
    readonly maxBytes: number;
    readonly signal: AbortSignal;
  }): Promise<Snapshot> {
    const snapshot = randomUUID();
    const request = { snapshot, max_bytes: maxBytes };
    try {
      const { bytes } = await this.#ask("TakeSnapshot", request, TakeSnapshotReply, signal);
      return new RemoteSnapshot(snapshot, bytes, this.#host, this.#under);
    } catch (error) {
      // It may have been taken just as nobody waited any more.
      void this.#ask("DropSnapshot", { snapshot }, Done).catch(() => {});
      throw error;
    }
  }

  protected async remove(): Promise<void> {
    // Its host closes what an attachment leaves (RH2).
    await this.#ask("CloseSandbox", {}, Done).catch((error: unknown) => {
      if (!this.#under.ended.aborted) throw error;
    });
  }

  protected async run(request: ExecRequest): Promise<ExecResult> {
    const { command, environment, cores, timeoutMs, graceMs, maxOutputBytes, onOutput, keepsOutput, onStart } = request;
    const { signal } = request;
    const exec = randomUUID();
    const call = this.#host.exec(this.#under);
    const kept = { stdout: [] as Buffer[], stderr: [] as Buffer[] };
    let roomBytes = maxOutputBytes ?? defaultLimits.maxOutputBytes;
    const over = new AbortController();
    const send = (name: CommandSignal | ""): void => {
      if (!over.signal.aborted) void this.#ask("Signal", { exec, signal: name }, Done).catch(() => {});
    };
    const cancel = (): void => send("");
    call.write({
      start: {
        attachment: this.#under.id,
        sandbox: this.id,
        exec,
        command,
        environment,
        cores,
        timeout_ms: timeoutMs === undefined ? undefined : Math.min(timeoutMs, longestTimerMs),
        grace_ms: graceMs,
        max_output_bytes: maxOutputBytes,
      },
    });
    const ended = new Promise<ExecResult>((resolve, reject) => {
      let result: ExecResult | undefined;
      call.on("data", (message: unknown) => {
        const parsed = ExecEvent.safeParse(message);
        if (!parsed.success) return call.cancel();
        const event = parsed.data;
        if (event.event === "began") {
          // What was sent before may have overtaken the command's start.
          if (signal?.aborted) cancel();
          return onStart?.(send);
        }
        if (event.event === "ended") {
          const { loss, ...rest } = event.ended;
          this.#loss ??= loss;
          result = { ...rest, stdout: Buffer.concat(kept.stdout), stderr: Buffer.concat(kept.stderr) };
          return;
        }
        for (const stream of ["stdout", "stderr"] as const) {
          const chunk = asBuffer(event.output[stream]);
          if (chunk.length === 0) continue;
          roomBytes -= chunk.length;
          if (roomBytes < 0) return call.cancel(); // a host that does not hold the limit
          if (keepsOutput !== false) kept[stream].push(chunk);
          onOutput?.(stream, chunk);
        }
      });
      call.on("error", (error: grpc.ServiceError) => {
        if (this.#under.ended.aborted) return reject(this.#under.ended.reason);
        reject(this.#host.errorOf(error, (loss) => this.#lost(loss)));
      });
      call.on("end", () => {
        if (result !== undefined) return resolve(result);
        // An error comes behind it where there is one.
        setImmediate(() =>
          reject(new TreadleError("sandbox.failed", `host '${this.#host.name}' ended a command without its result`)),
        );
      });
    });
    if (signal?.aborted) cancel();
    signal?.addEventListener("abort", cancel);
    void giveInput(call, request.stdin, over.signal);
    try {
      return await ended;
    } finally {
      over.abort();
      signal?.removeEventListener("abort", cancel);
    }
  }

  #ask<Schema extends Parameters<HostConnection["ask"]>[3]>(
    method: string,
    request: object,
    schema: Schema,
    signal?: AbortSignal,
  ) {
    const onLoss = (loss: string): void => this.#lost(loss);
    return this.#host.ask(this.#under, method, { sandbox: this.id, ...request }, schema, { signal, onLoss });
  }

  #lost(loss: string): void {
    this.#loss ??= loss;
  }
}

/** Files on the host on which they were. */
export class RemoteSnapshot implements Snapshot {
  readonly id: string;
  readonly bytes: number;
  readonly host: HostConnection;
  readonly under: Attachment;

  constructor(id: string, bytes: number, host: HostConnection, under: Attachment) {
    this.id = id;
    this.bytes = bytes;
    this.host = host;
    this.under = under;
  }

  get node(): string {
    return this.host.name;
  }

  get loss(): string | undefined {
    return this.under.ended.aborted ? (this.under.ended.reason as Error).message : undefined;
  }

  async drop(): Promise<void> {
    await this.host.ask(this.under, "DropSnapshot", { snapshot: this.id }, Done).catch((error: unknown) => {
      if (!this.under.ended.aborted) throw error; // RH2
    });
  }
}

/** As fast as the command reads it. */
async function giveInput(
  call: grpc.ClientDuplexStream<object, unknown>,
  stdin: ExecRequest["stdin"],
  over: AbortSignal,
): Promise<void> {
  const pieces = stdin instanceof Readable ? stdin.iterator({ destroyOnReturn: false }) : [Buffer.from(stdin ?? "")];
  try {
    for await (const piece of pieces as AsyncIterable<Uint8Array | string>) {
      const data = Buffer.from(piece as Uint8Array);
      for (let at = 0; at < data.length && !over.aborted; at += maxInputBytes)
        if (!call.write({ input: data.subarray(at, at + maxInputBytes) })) await once(call, "drain", { signal: over });
      if (over.aborted) return;
    }
    call.end();
  } catch {
    // The command is over, or its input has failed: it gets no more.
    call.end();
  }
}

const asBuffer = (data: Uint8Array): Buffer => Buffer.from(data.buffer, data.byteOffset, data.byteLength);
