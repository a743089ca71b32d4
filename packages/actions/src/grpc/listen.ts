/** Where the door of an action service is: its credentials, its listeners, and who may come in where there is no secret. */
import { chmod } from "node:fs/promises";
import * as grpc from "@grpc/grpc-js";
import { isLoopback, TreadleError } from "@treadle/contracts";
import { type LocalDoor, openLocalDoor } from "./local-door.ts";
import type { ActionServerOptions } from "./server.ts";

export type Listening = {
  /** 1 for a unix socket */
  readonly port: number;
  /** what whoever started it should know of who can call */
  readonly warning: string | undefined;
  /** Nothing more comes in; who is in may stay until `close`. Where the server itself listens, its own shutdown does both. */
  stop(): void;
  close(): Promise<void>;
};

const ownersAlone = 0o600;

/** `makeServer` is given what stands before every call. */
export async function listen(
  options: ActionServerOptions,
  makeServer: (guard: grpc.ServerInterceptor) => grpc.Server,
): Promise<Listening> {
  const { address, tls, tokens, insecure = false } = options;
  const credentials =
    tls === undefined
      ? grpc.ServerCredentials.createInsecure()
      : grpc.ServerCredentials.createSsl(
          tls.clientAuthority ?? null,
          [{ private_key: tls.key, cert_chain: tls.certificate }],
          tls.clientAuthority !== undefined,
        );
  /** Callers have shown no secret. */
  const isAnybody = tokens === undefined && tls?.clientAuthority === undefined && !insecure;
  const place = /^(.+):(\d+)$/.exec(address);
  let door: LocalDoor | undefined;
  const server = makeServer((_, call) => refusing(call, () => door?.refusalOf(call.getPeer())));
  try {
    const [, host = "", port = ""] = place ?? [];
    if (isAnybody && isLoopback(host)) {
      const injector = server.createConnectionInjector(credentials);
      door = await openLocalDoor({
        host,
        port: Number(port),
        inject: (connection) => injector.injectConnection(connection),
      });
      return door;
    }
    const socket = /^unix:(?:\/\/)?(.+)$/.exec(address)?.[1];
    if (isAnybody && socket === undefined)
      throw new Error(
        "other machines may reach it: give tokens, listen at 127.0.0.1:<port> or unix:/path, or set insecure: true",
      );
    const bound = await new Promise<number>((resolve, reject) => {
      server.bindAsync(address, credentials, (error, port) => (error === null ? resolve(port) : reject(error)));
    });
    // Whatever the umask leaves to others.
    if (isAnybody && socket !== undefined) await chmod(socket, ownersAlone);
    return { port: bound, warning: undefined, stop: () => {}, close: async () => {} };
  } catch (cause) {
    const { message } = cause as Error;
    throw new TreadleError(
      "config.invalid",
      `nothing can listen at '${address}': ${message}; give a free port of this machine, or port 0 for any`,
      { cause },
    );
  }
}

/** Ends a call before it is read, with the reason. */
function refusing(
  call: grpc.ServerInterceptingCallInterface,
  why: () => string | undefined,
): grpc.ServerInterceptingCall {
  const listener = new grpc.ServerListenerBuilder()
    .withOnReceiveMetadata((metadata, next) => {
      const details = why();
      if (details === undefined) next(metadata);
      else call.sendStatus({ code: grpc.status.PERMISSION_DENIED, details });
    })
    .build();
  return new grpc.ServerInterceptingCall(call, new grpc.ResponderBuilder().withStart((next) => next(listener)).build());
}
