/** A connection of the official client that never gives up, for the thread that calls it. */
import { readFileSync } from "node:fs";
import { connect, credsAuthenticator, type NatsConnection } from "@nats-io/transport-node";
import type { NatsThreadOptions } from "./nats-messages.ts";

const connectTimeoutMs = 5000;
/** A server that does not answer so many pings is taken for gone; half-open connections are noticed by that alone. */
const maxPingOut = 2;

export function connectNats(options: NatsThreadOptions): Promise<NatsConnection> {
  useSteadyClock();
  const { servers, name, user, password, token, credentialsFile, tls, pingMs } = options;
  return connect({
    servers: [...servers],
    name,
    timeout: connectTimeoutMs,
    maxReconnectAttempts: -1,
    reconnectTimeWait: 250,
    reconnectJitter: 100,
    pingInterval: pingMs,
    maxPingOut,
    ...(user === undefined ? {} : { user, pass: password ?? "" }),
    ...(token === undefined ? {} : { token }),
    ...(credentialsFile === undefined ? {} : { authenticator: credsAuthenticator(readFileSync(credentialsFile)) }),
    ...(tls === undefined
      ? {}
      : {
          tls: {
            ...(tls.ca === undefined ? {} : { caFile: tls.ca }),
            ...(tls.cert === undefined ? {} : { certFile: tls.cert }),
            ...(tls.key === undefined ? {} : { keyFile: tls.key }),
          },
        }),
  });
}

/**
 * The client measures by the wall clock: set back by hours, it would not dial again for as long. This thread is the
 * client's alone, and here the clock goes on evenly from where it was.
 */
function useSteadyClock(): void {
  Date.now = () => performance.timeOrigin + performance.now();
}
