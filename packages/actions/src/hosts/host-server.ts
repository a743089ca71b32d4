/**
 * The sandboxes of this machine, for an action service on another one (`protos/hosts/v1`).
 *
 * Owned here: the attachment, and whatever was made under it. What runs in sandboxes is the driver's.
 *
 * RH1 one service at a time: another is refused while one is attached. The same service takes its own place when it comes back.
 * RH2 what was made under an attachment goes with it, whether the service ended it, died or fell silent, or this host ends: the service
 *    is told first, where it still listens. No other attachment begins before all of it was closed, so that its cores and its
 *    memory are free; what could not be removed is said.
 * RH3 a call that names an attachment which is not the present one changes nothing: a service that was taken for dead may speak
 *    again.
 * RH4 after `close` no call is open and no sandbox is left.
 */
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { PassThrough } from "node:stream";
import * as grpc from "@grpc/grpc-js";
import { TreadleError } from "@treadle/contracts";
import type { z } from "zod";
import type {
  CommandSignal,
  ExecRequest,
  Sandbox,
  SandboxDriver,
  SandboxNetwork,
  Snapshot,
} from "../drivers/sandbox.ts";
import { endInTurn } from "../end-in-turn.ts";
import { type DoorOptions, endCalls, guardedServer, listen } from "../grpc/listen.ts";
import { DiskBudget, OutputSpool } from "../grpc/output-spool.ts";
import { hostDefinition } from "../grpc/service-definition.ts";
import { goneOf, read, StatusError, toStatus } from "../grpc/status.ts";
import { availableOfHost } from "../pool/memory-guard.ts";
import {
  AttachRequest,
  beatMs,
  CloseRequest,
  DropSnapshotRequest,
  ExecMessage,
  type HostShape,
  hostProtocol,
  lossKey,
  maxHostMessageBytes,
  OpenRequest,
  ReadFileRequest,
  SignalRequest,
  TakeSnapshotRequest,
  WriteFileRequest,
} from "./host-messages.ts";

export type HostServerOptions = Omit<DoorOptions, "tokens"> & {
  readonly driver: SandboxDriver;
  readonly shape: HostShape;
  /** sent as `authorization: Bearer <token>`; without it the user of this process and root may call, where no other can */
  readonly token?: string | undefined;
  /** what sandboxes may be given; default `none` */
  readonly network?: "none" | SandboxNetwork | undefined;
  /** how long a connection may say nothing before it is asked */
  readonly keepaliveMs?: number | undefined;
  /** how long what a call asks for may be on its way */
  readonly stallMs?: number | undefined;
  /** told of services that come and go */
  readonly onChange?: ((line: string) => void) | undefined;
};

export type HostServer = {
  readonly port: number;
  readonly warning: string | undefined;
  close(): Promise<void>;
};

type Opening = { readonly abort: AbortController; readonly sandbox: Promise<Sandbox>; opened: Sandbox | undefined };

/** All that one service has here. */
class Attachment {
  readonly id = randomUUID();
  readonly service: string;
  /** by which the service knows this one */
  readonly host: string;
  readonly output = new DiskBudget(outputBytes);
  readonly sandboxes = new Map<string, Opening>();
  readonly snapshots = new Map<string, Snapshot>();
  readonly running = new Map<string, (signal: CommandSignal | "") => void>();
  readonly #tell: (why: string) => void;
  #ended: Promise<void> | undefined;

  /** `tell`: says that it is over, and why, before anything of it is closed */
  constructor({ service, host }: { readonly service: string; readonly host: string }, tell: (why: string) => void) {
    this.service = service;
    this.host = host;
    this.#tell = tell;
  }

  get isOver(): boolean {
    return this.#ended !== undefined;
  }

  sandbox(id: string): Promise<Sandbox> {
    const opening = this.sandboxes.get(id);
    if (opening === undefined) throw new TreadleError("sandbox.failed", `sandbox '${id}' is not open on this host`);
    return opening.sandbox;
  }

  async closeSandbox(id: string): Promise<void> {
    const opening = this.sandboxes.get(id);
    if (opening === undefined) return;
    opening.abort.abort(new TreadleError("action.cancelled", "the sandbox was closed"));
    const sandbox = await opening.sandbox.catch(() => undefined);
    await sandbox?.close();
    this.sandboxes.delete(id);
  }

  /** RH2. Rejects with what could not be removed, when all else is. */
  end(why: string): Promise<void> {
    if (this.#ended === undefined) {
      this.#tell(why);
      this.#ended = endInTurn(
        () => [...this.sandboxes.keys()].map((id) => this.closeSandbox(id)),
        () => [...this.snapshots.values()].map((snapshot) => snapshot.drop()),
      );
    }
    return this.#ended;
  }
}

const defaultKeepaliveMs = 10_000;
/** that a service has not taken yet, of all its commands; it is kept in files */
const outputBytes = 2 ** 33;

/** What failed in a sandbox, and whether that is over. */
class FailedIn extends Error {
  readonly loss: string | undefined;

  constructor(cause: unknown, loss: string | undefined) {
    super("it failed in a sandbox", { cause });
    this.loss = loss;
  }
}

async function within<Result>(sandbox: Sandbox, run: (sandbox: Sandbox) => Promise<Result>): Promise<Result> {
  try {
    return await run(sandbox);
  } catch (error) {
    throw new FailedIn(error, sandbox.loss);
  }
}

function statusOf(error: unknown): ReturnType<typeof toStatus> {
  if (!(error instanceof FailedIn)) return toStatus(error);
  const status = toStatus(error.cause);
  if (error.loss !== undefined) status.metadata?.set(lossKey, encodeURIComponent(Buffer.from(error.loss).toString()));
  return status;
}

/** What both give. */
function narrower(own: "none" | SandboxNetwork, asked: SandboxNetwork | undefined): SandboxNetwork | undefined {
  if (asked === undefined || own === "none") return undefined;
  if (own === "host") return asked;
  return asked === "host" ? own : [...own, ...asked];
}

export async function serveHost(options: HostServerOptions): Promise<HostServer> {
  const { driver, shape, token, network = "none", onChange = () => {} } = options;
  const offered = shape.numa.flat();
  let current: Attachment | undefined;
  /** of all that were */
  let ending: Promise<void> = Promise.resolve();
  let failure: Error | undefined;

  /** RH3 */
  const attachmentOf = (id: string): Attachment => {
    if (current?.id === id && !current.isOver) return current;
    throw new StatusError(
      grpc.status.FAILED_PRECONDITION,
      "this attachment is over, and all that was made under it; attach again",
    );
  };
  const end = (attachment: Attachment, why: string): void => {
    if (attachment.isOver) return;
    const { size } = attachment.sandboxes;
    onChange(`the service is detached: ${why}; ${size === 1 ? "its sandbox is" : `its ${size} sandboxes are`} closed`);
    if (current === attachment) current = undefined;
    const ended = attachment.end(why).catch((error: Error) => {
      failure ??= error;
      onChange(`something of it could not be removed: ${error.message}`);
    });
    ending = Promise.all([ending, ended]).then(() => {});
  };

  const attach = async (call: grpc.ServerWritableStream<unknown, unknown>): Promise<void> => {
    const { protocol, service, host } = read(AttachRequest, call.request);
    if (protocol !== hostProtocol)
      throw new StatusError(
        grpc.status.UNIMPLEMENTED,
        `the service speaks protocol '${protocol}', this host ${hostProtocol}; install the same version of Treadle on both`,
      );
    if (current !== undefined && current.service !== service)
      throw new StatusError(
        grpc.status.FAILED_PRECONDITION,
        "another action service is attached to it; end that one, or name other hosts",
      );
    if (current !== undefined && current.host !== host)
      throw new StatusError(
        grpc.status.INVALID_ARGUMENT,
        `it is this service's host '${current.host}' already; name each machine once`,
      );
    if (current !== undefined) end(current, "it has come again");
    const gone = goneOf(call);
    let timer: NodeJS.Timeout | undefined;
    const attachment = new Attachment({ service, host }, (why) => {
      clearInterval(timer);
      call.emit("error", { code: grpc.status.UNAVAILABLE, details: why });
    });
    current = attachment; // RH1, while the last one's end is waited for
    gone.addEventListener("abort", () => end(attachment, "its connection ended"), { once: true });
    await ending; // RH2
    if (gone.aborted || attachment.isOver) return;
    const { numa, memoryBytes } = shape;
    call.write({
      attached: {
        attachment: attachment.id,
        driver: driver.name,
        isolation: driver.isolation,
        numa: numa.map((cores) => ({ cores })),
        memory_bytes: memoryBytes,
        disk_lacks: driver.diskLacks(),
      },
    });
    onChange("a service is attached");
    const beat = (): void => {
      const open = [...attachment.sandboxes].flatMap(([id, { opened }]) =>
        opened === undefined ? [] : [[id, opened] as const],
      );
      const used = open.flatMap(([id, sandbox]) => {
        const bytes = sandbox.usedBytes();
        return bytes === undefined ? [] : [[id, bytes] as const];
      });
      const losses = open.flatMap(([id, { loss }]) => (loss === undefined ? [] : [[id, loss] as const]));
      const said = { available_bytes: availableOfHost(), used_bytes: Object.fromEntries(used) };
      call.write({ beat: { ...said, losses: Object.fromEntries(losses) } });
    };
    beat();
    timer = setInterval(beat, beatMs);
  };

  const open = async (request: z.infer<typeof OpenRequest>): Promise<object> => {
    const { sandbox: id, memoryBytes, maxProcesses, diskBytes, snapshot, image, user, workingFolder } = request;
    const attachment = attachmentOf(request.attachment);
    if (request.network !== undefined && network === "none")
      throw new TreadleError(
        "sandbox.unavailable",
        "this host gives sandboxes no network; leave it out, or set network in the host's configuration",
      );
    const from = snapshot === undefined ? undefined : attachment.snapshots.get(snapshot);
    if (snapshot !== undefined && from === undefined)
      throw new TreadleError("action.invalid", "the snapshot is not on this host; take another");
    if (attachment.sandboxes.has(id)) throw new TreadleError("action.invalid", `sandbox '${id}' is open already`);
    const abort = new AbortController();
    const container = { image, user, workingFolder };
    const given = {
      memoryBytes,
      maxProcesses,
      diskBytes,
      network: narrower(network, request.network),
      from,
      container,
    };
    const opening: Opening = { abort, sandbox: driver.open(given, abort.signal), opened: undefined };
    attachment.sandboxes.set(id, opening);
    try {
      opening.opened = await opening.sandbox;
    } catch (error) {
      if (attachment.sandboxes.get(id) === opening) attachment.sandboxes.delete(id);
      throw error;
    }
    return { state_folder: opening.opened.stateFolder };
  };

  const exec = async (call: grpc.ServerDuplexStream<unknown, unknown>): Promise<void> => {
    const gone = goneOf(call);
    // Its answers go on when its input has ended.
    const messages = call.iterator({ destroyOnReturn: false });
    const next = async () => {
      const { done, value } = await messages.next();
      return done === true ? undefined : read(ExecMessage, value);
    };
    const first = await next();
    if (first?.message !== "start")
      throw new StatusError(grpc.status.INVALID_ARGUMENT, "the first message of a command is its start");
    const { attachment: id, exec: name, sandbox: of, command, environment, cores, ...limits } = first.start;
    const attachment = attachmentOf(id);
    const others = cores.filter((core) => !offered.includes(core));
    if (others.length > 0)
      throw new TreadleError(
        "action.invalid",
        `cores: '${others.join(", ")}' are none of this host's, which are ${offered.join(", ")}`,
      );
    const cancel = new AbortController();
    let signaller: ((signal: CommandSignal) => void) | undefined;
    attachment.running.set(name, (signal) => {
      if (signal === "") cancel.abort();
      else signaller?.(signal);
    });
    const over = new AbortController();
    const stdin = new PassThrough();
    const giveInput = async (): Promise<void> => {
      for (let message = await next(); message !== undefined; message = await next()) {
        if (message.message !== "input" || over.signal.aborted) continue;
        if (!stdin.write(message.input)) await once(stdin, "drain", { signal: over.signal }).catch(() => {});
      }
      stdin.end();
    };
    const events = new OutputSpool(call, attachment.output);
    let isFull = false;
    try {
      const sandbox = await attachment.sandbox(of);
      // Where the connection breaks, the command is ended for that.
      void giveInput().catch(() => stdin.end());
      const request: ExecRequest = {
        command,
        environment,
        stdin,
        cores: cores.length > 0 ? cores : offered,
        ...limits,
        signal: AbortSignal.any([gone, cancel.signal]),
        keepsOutput: false,
        onOutput: (stream, chunk) => {
          if (isFull || events.give(stream, chunk)) return;
          isFull = true;
          cancel.abort();
        },
        onStart: (signal) => {
          signaller = signal;
          events.tell({ began: {} });
        },
      };
      const { status, exitCode, seconds } = await within(sandbox, (one) => one.exec(request));
      if (isFull)
        throw new TreadleError(
          "sandbox.failed",
          `the host has no room for what the command prints: '${attachment.output.usedBytes}' bytes are on their way to the service, of ${outputBytes} that may be, or its disk is full; print less at once, or make room in its TMPDIR`,
        );
      const code = exitCode === null ? {} : { exit_code: exitCode };
      events.tell({ ended: { status, ...code, seconds, loss: sandbox.loss ?? "" } });
      events.end();
    } catch (error) {
      events.discard();
      throw error;
    } finally {
      if (gone.aborted) events.discard();
      else gone.addEventListener("abort", () => events.discard(), { once: true });
      attachment.running.delete(name);
      over.abort();
    }
  };

  const unary =
    <Schema extends z.ZodType>(schema: Schema, answer: (request: z.infer<Schema>, gone: AbortSignal) => unknown) =>
    (call: grpc.ServerUnaryCall<unknown, unknown>, callback: grpc.sendUnaryData<unknown>): void => {
      void Promise.resolve()
        .then(() => answer(read(schema, call.request), goneOf(call)))
        .then(
          (reply) => callback(null, reply ?? {}),
          (error: unknown) => callback(statusOf(error)),
        );
    };
  const streaming =
    <Call extends { emit(event: "error", error: unknown): unknown }>(run: (call: Call) => Promise<void>) =>
    (call: Call): void => {
      void run(call).catch((error: unknown) => call.emit("error", statusOf(error)));
    };

  const implementation: grpc.UntypedServiceImplementation = {
    Attach: streaming(attach),
    Exec: streaming(exec),
    OpenSandbox: unary(OpenRequest, open),
    Signal: unary(SignalRequest, ({ attachment, exec: name, signal }) =>
      attachmentOf(attachment).running.get(name)?.(signal),
    ),
    WriteFile: unary(WriteFileRequest, async ({ attachment, sandbox, path, data }) =>
      within(await attachmentOf(attachment).sandbox(sandbox), (one) => one.writeFile(path, data)),
    ),
    ReadFile: unary(ReadFileRequest, async ({ attachment, sandbox, path, maxBytes }) => ({
      data: await within(await attachmentOf(attachment).sandbox(sandbox), (one) => one.readFile(path, maxBytes)),
    })),
    TakeSnapshot: unary(TakeSnapshotRequest, async ({ attachment: id, sandbox, snapshot: name, maxBytes }, signal) => {
      const attachment = attachmentOf(id);
      if (attachment.snapshots.has(name))
        throw new TreadleError("action.invalid", `snapshot '${name}' is there already; choose another name`);
      const snapshot = await within(await attachment.sandbox(sandbox), (one) => one.snapshot({ maxBytes, signal }));
      if (attachment.isOver || signal.aborted) {
        await snapshot.drop();
        throw new TreadleError("action.cancelled", "its caller went away");
      }
      attachment.snapshots.set(name, snapshot);
      return { bytes: snapshot.bytes };
    }),
    DropSnapshot: unary(DropSnapshotRequest, async ({ attachment: id, snapshot: name }) => {
      const { snapshots } = attachmentOf(id);
      const snapshot = snapshots.get(name);
      snapshots.delete(name);
      await snapshot?.drop();
    }),
    CloseSandbox: unary(CloseRequest, ({ attachment, sandbox }) => attachmentOf(attachment).closeSandbox(sandbox)),
  };

  let server!: grpc.Server;
  const tokens = token === undefined ? undefined : new Map([[token, "service"]]);
  const tokenRemedy = "the host's token is needed; give the service the same tokenFile";
  const listening = await listen({ ...options, tokens, tokenRemedy }, (guard) => {
    // A service whose connection died without a word is found (RH2).
    const { keepaliveMs = defaultKeepaliveMs } = options;
    server = guardedServer(guard, { keepaliveMs, maxMessageBytes: maxHostMessageBytes });
    server.addService(hostDefinition(), implementation);
    return server;
  });
  let closing: Promise<void> | undefined;
  const close = (): Promise<void> => {
    listening.stop();
    if (current !== undefined) end(current, "this host ends");
    return endInTurn(
      () => [ending],
      () => [endCalls(server)],
      () => [listening.close()],
      () => [driver.close()],
      () => [failure === undefined ? undefined : Promise.reject(failure)],
    );
  };
  return {
    port: listening.port,
    warning: listening.warning,
    close() {
      closing ??= close();
      return closing;
    },
  };
}
