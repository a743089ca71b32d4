import { connect, headers, type MsgHdrs, type NatsConnection, nkeyAuthenticator } from "@nats-io/transport-node";

/** A bare client of NATS, with a user's key or none: what an attacker has. Rejects when the server does not admit it. */
export function connectStranger(url: string, seed?: Uint8Array): Promise<NatsConnection> {
  return connect({
    servers: url,
    reconnect: false,
    ...(seed === undefined ? {} : { authenticator: nkeyAuthenticator(seed) }),
  });
}

/** By which a server says that nobody listens, and anybody else may as well. */
export const nobodyListens = (): MsgHdrs => headers(503, "No Responders");
