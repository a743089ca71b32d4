/** A connection of the official client that never gives up, for the thread that calls it. */
import { readFileSync } from "node:fs";
import { isIP } from "node:net";
import { checkServerIdentity, type PeerCertificate } from "node:tls";
import { type Authenticator, connect, credsAuthenticator, type NatsConnection } from "@nats-io/transport-node";
import type { NatsThreadOptions } from "./nats-messages.ts";
import { answersOf, inboxOf, seedIn } from "./nkey-seed.ts";
import { SigningKey } from "./nkey-signature.ts";
import { hostOf } from "./server-host.ts";

const connectTimeoutMs = 5000;
/** One that hears and cannot answer, as behind a network that is cut one way, keeps nobody from the others for longer. */
const connectToOneOfSeveralMs = 2500;
/** A server that does not answer so many pings is taken for gone; half-open connections are noticed by that alone. */
const maxPingOut = 2;

export function connectNats(options: NatsThreadOptions): Promise<NatsConnection> {
  useSteadyClock();
  const { servers, name, user, password, token, credentialsFile, tls, pingMs } = options;
  return connect({
    servers: [...servers],
    name,
    timeout: servers.length > 1 ? connectToOneOfSeveralMs : connectTimeoutMs,
    maxReconnectAttempts: -1,
    reconnectTimeWait: 250,
    reconnectJitter: 100,
    pingInterval: pingMs,
    maxPingOut,
    // One that refuses its clients may have been started with old keys, or is not the server at all: who gives up never comes back.
    ignoreAuthErrorAbort: true,
    ...(user === undefined ? {} : { user, pass: password ?? "" }),
    ...(token === undefined ? {} : { token }),
    ignoreClusterUpdates: options.isFixed,
    ...(credentialsFile === undefined ? {} : byKey(readFileSync(credentialsFile, "utf8"))),
    ...(tls === undefined
      ? {}
      : {
          tls: {
            ...(tls.ca === undefined ? {} : { caFile: tls.ca }),
            ...(tls.cert === undefined ? {} : { certFile: tls.cert }),
            ...(tls.key === undefined ? {} : { keyFile: tls.key }),
            ...{ checkServerIdentity: identityAmong(servers.map(hostOf)) }, // handed on to `node:tls`
          },
        }),
  });
}

/**
 * The client gives a server that has an address for a name no name at all, and Node then asks for a certificate of 'localhost'. A
 * certificate for any of the addresses that are configured is asked for instead: to which of them this connection goes is not told.
 */
function identityAmong(hosts: readonly string[]) {
  const addresses = hosts.filter((host) => isIP(host) !== 0);
  return (name: string, certificate: PeerCertificate): Error | undefined => {
    const isNamed = name !== "localhost" || hosts.includes(name) || addresses.length === 0;
    const names = [...(isNamed ? [name] : []), ...(name === "localhost" ? addresses : [])];
    const errors = names.map((each) => checkServerIdentity(each, certificate));
    return errors.includes(undefined) ? undefined : errors[0];
  };
}

/** `read`: undefined for what somebody else has answered. Resolves with undefined when nobody answers. */
export type AskMember = (
  subject: string,
  data: string,
  read: (answer: string) => string | undefined,
  timeoutMs: number,
) => Promise<string | undefined>;

/** Anybody may say in the server's place that nobody listens: within this time whoever does has answered. */
const graceMs = 250;

/** Subjects for answers, which nobody can guess, apart from those on which the server answers. */
export function memberInbox({ credentialsFile }: NatsThreadOptions): () => string {
  const { inboxPrefix = "_INBOX" } = credentialsFile === undefined ? {} : byKey(readFileSync(credentialsFile, "utf8"));
  const answers = answersOf(inboxPrefix);
  return () => `${answers}.${crypto.randomUUID()}`;
}

/** Asks other members, and waits for an answer of theirs. */
export function memberAsker(connection: NatsConnection, options: NatsThreadOptions): AskMember {
  const inbox = memberInbox(options);
  return (subject, data, read, timeoutMs) =>
    new Promise((resolve) => {
      const reply = inbox();
      const end = (answer?: string) => {
        clearTimeout(timer);
        subscription.unsubscribe();
        resolve(answer);
      };
      const subscription = connection.subscribe(reply, {
        callback: (error, message) => {
          if (error) return end();
          const isNobody = message.data.length === 0 && message.headers?.code === 503;
          if (isNobody) return void setTimeout(end, graceMs);
          const answer = read(message.string());
          if (answer !== undefined) end(answer);
        },
      });
      const timer = setTimeout(end, timeoutMs);
      connection.publish(subject, data, { reply });
    });
}

/** What servers ask to have signed: a few random characters. */
const nonceForm = /^[A-Za-z0-9_-]{1,64}$/;

/**
 * Answers arrive below the key's own subject, so that a server can keep them from the holders of other keys. The key signs what a
 * server asks for only where that can be nothing else (TR8).
 */
function byKey(text: string): { authenticator: Authenticator; inboxPrefix?: string } {
  const bytes = new TextEncoder();
  const seed = seedIn(text);
  const key = seed === undefined ? undefined : new SigningKey(seed);
  const inbox = key === undefined ? {} : { inboxPrefix: inboxOf(key.publicKey) };
  const signed = (authenticator: Authenticator): Authenticator => {
    return (nonce = "") => (nonceForm.test(nonce) ? authenticator(nonce) : undefined);
  };
  if (key === undefined || text.includes("BEGIN NATS USER JWT"))
    return { authenticator: signed(credsAuthenticator(bytes.encode(text))), ...inbox };
  const sign = (nonce: string) => key.sign(bytes.encode(nonce)).toString("base64url");
  return { authenticator: signed((nonce = "") => ({ nkey: key.publicKey, sig: sign(nonce) })), ...inbox };
}

/**
 * The client measures by the wall clock: set back by hours, it would not dial again for as long. This thread is the
 * client's alone, and here the clock goes on evenly from where it was.
 */
function useSteadyClock(): void {
  Date.now = () => performance.timeOrigin + performance.now();
}
