/** Where the door of an action service is: its credentials, its listeners, and who may come in where there is no secret. */
import { once } from "node:events";
import { chmod, lstat, rm } from "node:fs/promises";
import { createConnection, type Socket } from "node:net";
import * as grpc from "@grpc/grpc-js";
import { isLoopback, TreadleError } from "@treadle/contracts";
import { Arrivals } from "./arrivals.ts";
import { type Door, openDoor, type Place } from "./door.ts";
import type { ActionServerOptions } from "./server.ts";

const ownersAlone = 0o600;
/** What is beyond is cut off without a word. */
const longestPath = 107;

export type DoorOptions = Pick<ActionServerOptions, "address" | "tls" | "tokens" | "insecure" | "connections">;

const unknownToken = "a known token is needed: send 'authorization: Bearer <token>'";

/** Of a tenant's messages, those that may be half here: two GiB, at their largest. */
const mostArrivals = 32;
export const usualStallMs = 60_000;

/**
 * `makeServer` is given what stands before every call. A client without a known token is told `tokenRemedy`. The request of a call
 * has `stallMs` to arrive (HM1).
 */
export async function listen(
  options: DoorOptions & {
    readonly tokenRemedy?: string;
    readonly stallMs?: number | undefined;
  },
  makeServer: (guard: grpc.ServerInterceptor) => grpc.Server,
): Promise<Door> {
  const { tls, tokens, stallMs = usualStallMs, tokenRemedy = unknownToken } = options;
  const arrivals = new Arrivals(mostArrivals);
  const credentials =
    tls === undefined
      ? grpc.ServerCredentials.createInsecure()
      : grpc.ServerCredentials.createSsl(
          tls.clientAuthority ?? null,
          [{ private_key: tls.key, cert_chain: tls.certificate }],
          tls.clientAuthority !== undefined,
        );
  let door: Door | undefined;
  const refusalOf = (metadata: grpc.Metadata, peer: string): Refusal | undefined => {
    const details = door?.refusalOf(peer);
    if (details !== undefined) return { code: grpc.status.PERMISSION_DENIED, details };
    if (tokens === undefined || tenantOf(tokens, authorizationIn(metadata)) !== undefined) return undefined;
    return { code: grpc.status.UNAUTHENTICATED, details: tokenRemedy };
  };
  const server = makeServer(({ requestStream }, call) => {
    const asked = (): (() => void) => door?.asked(call.getPeer()) ?? (() => {});
    const enter = (metadata: grpc.Metadata, read: () => void): (() => void) => {
      const late = {
        code: grpc.status.DEADLINE_EXCEEDED,
        details: `what the call asks for did not come within ${stallMs / 1000} s; send it faster, or a large file by Upload`,
      };
      const tenant = tokens && tenantOf(tokens, authorizationIn(metadata));
      let timer: NodeJS.Timeout | undefined;
      const leave = arrivals.enter(tenant ?? "", () => {
        const end = (): void => {
          leave();
          call.sendStatus(late);
        };
        timer = setTimeout(end, stallMs).unref();
        read();
      });
      return () => {
        clearTimeout(timer);
        leave();
      };
    };
    const refusal = (metadata: grpc.Metadata) => refusalOf(metadata, call.getPeer());
    return guarded(call, { refusalOf: refusal, asked, enter, hasManyMessages: requestStream });
  });
  door = await openDoorAt(options, () => {
    const injector = server.createConnectionInjector(credentials);
    return (connection) => injector.injectConnection(connection);
  });
  return door;
}

/** Where `options` say, if they may: `makeInject` makes what takes the connections. Throws `config.invalid`. */
export async function openDoorAt(options: DoorOptions, makeInject: () => (connection: Socket) => void): Promise<Door> {
  const { address, tls, tokens, insecure = false, connections } = options;
  /** Callers have shown no secret. */
  const isAnybody = tokens === undefined && tls?.clientAuthority === undefined && !insecure;
  const place = placeOf(address);
  let door: Door | undefined;
  try {
    if (place === undefined) throw new Error("it is no host:port and no unix:/path; give one of them");
    const isLocal = "path" in place || isLoopback(place.host);
    if (isAnybody && !isLocal)
      throw new Error(
        "other machines may reach it; give tokens, listen at 127.0.0.1:<port> or unix:/path, or set insecure: true",
      );
    if ("path" in place && Buffer.byteLength(place.path) > longestPath)
      throw new Error(`the path has more than ${longestPath} bytes; give a shorter one`);
    if ("path" in place) await removeDeadSocket(place.path);
    const isForOwner = isAnybody && !("path" in place);
    door = await openDoor({
      place,
      isForOwner,
      connections,
      isEncrypted: tls !== undefined,
      inject: makeInject(),
    });
    // Whatever the umask leaves to others.
    if (isAnybody && "path" in place) await chmod(place.path, ownersAlone);
    return door;
  } catch (cause) {
    await door?.close();
    const { message, syscall } = cause as NodeJS.ErrnoException;
    const other =
      place !== undefined && "path" in place
        ? "give a path in a folder that is there, where nothing is"
        : "give a free port of this machine, or port 0 for any";
    const remedy = syscall === undefined ? "" : `; ${other}`;
    throw new TreadleError("config.invalid", `nothing can listen at '${address}': ${message}${remedy}`, { cause });
  }
}

/** Of a service that was killed: nobody accepts there, and it would be in the way. */
async function removeDeadSocket(path: string): Promise<void> {
  const isSocket = await lstat(path).then(
    (found) => found.isSocket(),
    () => false,
  );
  if (!isSocket) return;
  const probe = createConnection(path);
  const error = await once(probe, "connect").catch((cause: NodeJS.ErrnoException) => cause);
  probe.destroy();
  if ("code" in error && error.code === "ECONNREFUSED") await rm(path, { force: true });
}

function placeOf(address: string): Place | undefined {
  const path = /^unix:(?:\/\/)?([^\0]+)$/.exec(address)?.[1];
  if (path !== undefined) return { path };
  const [, host, port] = /^(?!(?:unix|unix-abstract|dns|ipv4|ipv6|vsock):)(.+):(\d+)$/.exec(address) ?? [];
  return host === undefined ? undefined : { host, port: Number(port) };
}

/** Where others reach what listens at `address`, now that its port is known. */
export const boundAddress = (address: string, port: number): string =>
  address.startsWith("unix:") ? address : address.replace(/:\d+$/, `:${port}`);

/** `keepaliveMs`: how long a connection may say nothing before it is asked. */
export const guardedServer = (
  guard: grpc.ServerInterceptor,
  { keepaliveMs, maxMessageBytes }: { readonly keepaliveMs: number; readonly maxMessageBytes: number },
): grpc.Server =>
  new grpc.Server({
    "grpc.keepalive_time_ms": keepaliveMs,
    "grpc.keepalive_timeout_ms": Math.min(keepaliveMs, 10_000),
    "grpc.max_receive_message_length": maxMessageBytes,
    "grpc.max_send_message_length": maxMessageBytes,
    interceptors: [guard],
  });

/** Calls with nothing to wait for end on their own. The rest are cut after a second, since a peer that hangs closes nothing. */
export function endCalls(server: grpc.Server): Promise<void> {
  return new Promise((resolve) => {
    const cut = setTimeout(() => {
      server.forceShutdown();
      resolve();
    }, 1000);
    server.tryShutdown(() => {
      clearTimeout(cut);
      resolve();
    });
  });
}

/** What a call sent. */
export const authorizationIn = (metadata: grpc.Metadata): string => String(metadata.get("authorization")[0] ?? "");

/** The tenant whose token the header has; the scheme's name is read in upper case or lower (RFC 9110 §11.1). */
export function tenantOf(tokens: ReadonlyMap<string, string>, authorization: string | undefined): string | undefined {
  const token = /^Bearer +(.+)$/i.exec(authorization ?? "")?.[1];
  return token === undefined ? undefined : tokens.get(token);
}

type Refusal = { readonly code: grpc.status; readonly details: string };

/** By the metadata of calls: what is to run at their end, or that they are over. */
const ends = new WeakMap<grpc.Metadata, (() => void) | "over">();

/** Runs once when the call with this metadata is over: its answer was taken by its connection, or it was cancelled. */
export function whenOver(metadata: grpc.Metadata, act: () => void): void {
  if (ends.get(metadata) === "over") act();
  else ends.set(metadata, act);
}

/** Ends a call that is refused with the reason, before it is read. */
function guarded(
  call: grpc.ServerInterceptingCallInterface,
  { refusalOf, asked, enter, hasManyMessages }: Guard,
): grpc.ServerInterceptingCall {
  let own: grpc.Metadata | undefined;
  let answered = (): void => {};
  let came = (): void => {};
  let isOver = false;
  let isAsked = false;
  // Its connection is idle until then, as it is before a request over HTTP is there (CT2).
  const hasCome = (): void => {
    came();
    if (isOver || isAsked) return;
    isAsked = true;
    answered = asked();
  };
  const over = (): void => {
    isOver = true;
    came();
    answered();
    if (own === undefined) return;
    const act = ends.get(own);
    ends.set(own, "over");
    if (typeof act === "function") act();
  };
  const listener = new grpc.ServerListenerBuilder()
    .withOnReceiveMetadata((metadata, next) => {
      own = metadata;
      const refusal = refusalOf(metadata);
      if (refusal !== undefined) return call.sendStatus(refusal);
      came = enter(metadata, () => next(metadata));
      if (isOver) came();
    })
    .withOnReceiveMessage((message, next) => {
      if (hasManyMessages) hasCome();
      next(message);
    })
    .withOnReceiveHalfClose((next) => {
      hasCome();
      next();
    })
    .withOnCancel(over)
    .build();
  const responder = new grpc.ResponderBuilder()
    .withStart((next) => next(listener))
    .withSendStatus((status, next) => {
      over();
      next(status);
    });
  return new grpc.ServerInterceptingCall(call, responder.build());
}

type Guard = {
  readonly refusalOf: (metadata: grpc.Metadata) => Refusal | undefined;
  /** called for what is not refused, and what it returns at its end */
  readonly asked: () => () => void;
  /** calls `read` when what it asks for may come, and what it returns is called when that has, or never will */
  readonly enter: (metadata: grpc.Metadata, read: () => void) => () => void;
  /** what it asks for is there with the first message, else when its client has sent all */
  readonly hasManyMessages: boolean;
};
