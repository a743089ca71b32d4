/**
 * The thread that holds the connection to NATS, so that a main thread which computes for minutes neither loses messages
 * nor falls silent: the server drops a client that does not read, without a word to anybody.
 *
 * Owner of: the connection, its subscriptions and beats. The main thread has only their numbers.
 */
import { parentPort, workerData } from "node:worker_threads";
import { jetstream, jetstreamManager, type StreamInfo } from "@nats-io/jetstream";
import { type KV, Kvm } from "@nats-io/kv";
import { errors, type NatsConnection, type Subscription } from "@nats-io/transport-node";
import { connectNats, memberInbox } from "./connect-nats.ts";
import { FloodGate, floodWindowMs, maxEntryBytes, memberFlood } from "./flood-gate.ts";
import type { FromThread, NatsThreadOptions, StoredEntry, ThreadFailure, ToThread } from "./nats-messages.ts";
import { contentOf, DamagedObject, NatsObjects } from "./nats-objects.ts";
import { PresentMember } from "./present-member.ts";
import { checkShape, ForeignStream } from "./stream-shape.ts";

const port = parentPort as NonNullable<typeof parentPort>;
const options = workerData as NatsThreadOptions;
const send = (message: FromThread) => port.postMessage(message);

const retryMs = 500;
/** As long as servers that go and come need at most to have one again. */
const tellMs = 30_000;
/** What a server says that is not to keep more, by its own limits or by those of the account. */
const limits =
  /maximum (number of )?(streams|consumers)|insufficient (storage|memory)|resource limits exceeded|exceed.*limit/i;
let refreshes = 0;

const buckets = new Map<string, { readonly kv: KV; readonly replicas: number }>();
const subscriptions = new Map<number, Subscription>();
const members = new Map<number, PresentMember>();
let objects: NatsObjects | undefined;

function failureOf(error: unknown): ThreadFailure {
  const message = error instanceof Error ? error.message : String(error);
  const causes = [error, error instanceof Error ? error.cause : undefined];
  const is = (...types: (new (...args: never[]) => Error)[]) =>
    causes.some((cause) => types.some((type) => cause instanceof type));
  if (is(errors.NoRespondersError)) return { kind: "no-responders", message };
  if (is(errors.TimeoutError)) return { kind: "timeout", message };
  if (is(errors.AuthorizationError, errors.PermissionViolationError, errors.UserAuthenticationExpiredError))
    return { kind: "refused", message };
  if (/wrong last sequence/i.test(message)) return { kind: "conflict", message };
  if (error instanceof ForeignStream) return { kind: "foreign", message };
  if (error instanceof DamagedObject) return { kind: "damaged", message };
  if (limits.test(message)) return { kind: "limit", message };
  return { kind: "failed", message };
}

async function start(): Promise<NatsConnection> {
  const connection = await connectNats(options);
  void follow(connection);
  return connection;
}

async function follow(connection: NatsConnection): Promise<void> {
  let isAway = false; // a server that refuses is lost again at each attempt, and all of them come back together
  for await (const status of connection.status()) {
    if (status.type === "disconnect" && !isAway) {
      isAway = true;
      send({ type: "connection", isConnected: false });
    }
    if (status.type === "reconnect" && isAway) {
      isAway = false;
      for (const member of members.values()) member.say();
      sayConnected(connection);
      void refresh(connection);
    }
  }
}

/** Before any message of that server. */
function sayConnected({ info }: NatsConnection): void {
  const others = (info?.connect_urls ?? []).map((address) => address.replace(/:\d+$/, ""));
  send({ type: "connection", isConnected: true, listensOn: info === undefined ? [] : [info.host, ...others] });
}

/**
 * The server may have been started without what it kept. Servers of a cluster elect a leader first, so this is tried until
 * it works.
 */
async function refresh(connection: NatsConnection): Promise<void> {
  const mine = ++refreshes;
  while (mine === refreshes && !connection.isClosed()) {
    try {
      for (const [bucket, { replicas }] of [...buckets]) await openBucket(connection, bucket, replicas);
      await objects?.reopen();
      return;
    } catch {
      await new Promise((resolve) => setTimeout(resolve, retryMs));
    }
  }
}

async function openBucket(connection: NatsConnection, bucket: string, replicas: number): Promise<void> {
  const kv = await new Kvm(jetstream(connection)).create(bucket, { history: 1, replicas });
  const { streamInfo } = (await kv.status()) as unknown as { streamInfo: StreamInfo };
  checkShape(streamInfo.config, [`$KV.${bucket}.>`]);
  buckets.set(bucket, { kv, replicas });
}

function bucketOf(name: string): KV {
  const bucket = buckets.get(name);
  if (bucket === undefined) throw new Error(`bucket '${name}' is not open`);
  return bucket.kv;
}

/** Not by `KV.keys`, which follows the bucket until it is quiet: of one that somebody writes to all the time it never ends. */
async function list(connection: NatsConnection, bucket: string, below?: string): Promise<StoredEntry[]> {
  const kv = bucketOf(bucket);
  const prefix = `$KV.${bucket}.`;
  const filter = `${prefix}${below === undefined ? ">" : `${below}.>`}`;
  const { state } = await (await jetstreamManager(connection, { checkAPI: false })).streams.info(`KV_${bucket}`, {
    subjects_filter: filter,
  });
  const keys = Object.keys(state.subjects ?? {}).map((subject) => subject.slice(prefix.length));
  const entries = await Promise.all(keys.map((key) => read(kv, key)));
  return entries.filter((entry) => entry !== undefined);
}

async function read(kv: KV, key: string): Promise<StoredEntry | undefined> {
  const entry = await kv.get(key);
  return entry?.operation === "PUT" ? { key, data: entry.string(), revision: entry.revision } : undefined;
}

async function put(message: Extract<ToThread, { type: "put" }>): Promise<number> {
  const kv = bucketOf(message.bucket);
  return message.isNew ? kv.create(message.key, message.data) : kv.put(message.key, message.data);
}

function subscribe(
  connection: NatsConnection,
  { id, subject, ofMembers }: Extract<ToThread, { type: "subscribe" }>,
): void {
  const subscription = connection.subscribe(subject, {
    callback: (error, message) => {
      if (error) return;
      const tell = () =>
        send({ type: "message", id, subject: message.subject, data: message.string(), reply: message.reply });
      if (!ofMembers) tell();
      else if (message.data.length <= maxEntryBytes) passes(message.subject, message.data.length, tell);
    },
  });
  subscriptions.set(id, subscription);
}

const gate = new FloodGate<() => void>(memberFlood);
let isWindowOpen = false;

function endWindow(): void {
  isWindowOpen = false;
  for (const tell of gate.ends()) tell();
}

/** Whoever floods the subjects of members takes nothing from the main thread but what a window has room for. */
function passes(subject: string, bytes: number, tell: () => void): void {
  if (!isWindowOpen) setTimeout(endWindow, floodWindowMs);
  isWindowOpen = true;
  if (gate.arrives(subject, bytes, tell)) tell();
}

/**
 * Resolves when a server knows of all that was sent. What is subscribed to outlives a connection: the client repeats it to the
 * next server, which is asked then.
 */
async function tellServer(connection: NatsConnection): Promise<void> {
  const endMs = performance.now() + tellMs;
  for (;;) {
    try {
      return await connection.flush();
    } catch (error) {
      if (connection.isClosed() || performance.now() > endMs) throw error;
      await new Promise((resolve) => setTimeout(resolve, retryMs));
    }
  }
}

/** Whoever hears the question may answer it; which answer counts, the main thread says. */
function request(
  connection: NatsConnection,
  reply: string,
  { id, subject, data, timeoutMs }: Extract<ToThread, { type: "request" }>,
): Promise<never> {
  return new Promise((_, reject) => {
    const subscription = connection.subscribe(reply, {
      callback: (error, message) => {
        if (error) reject(error);
        else if (message.data.length === 0 && message.headers?.code === 503)
          reject(new errors.NoRespondersError(subject));
        else send({ type: "message", id, subject: message.subject, data: message.string() });
      },
    });
    subscriptions.set(id, subscription);
    setTimeout(() => reject(new errors.TimeoutError()), timeoutMs).unref();
    connection.publish(subject, data, { reply });
  });
}

async function act(connection: NatsConnection, inbox: () => string, message: ToThread): Promise<unknown> {
  switch (message.type) {
    case "subscribe":
      subscribe(connection, message);
      return tellServer(connection); // whoever asks next is heard
    case "unsubscribe":
      subscriptions.get(message.subscription)?.unsubscribe();
      subscriptions.delete(message.subscription);
      return tellServer(connection);
    case "publish":
      connection.publish(message.subject, message.data);
      return undefined;
    case "request":
      return request(connection, inbox(), message);
    case "answered":
      subscriptions.get(message.request)?.unsubscribe();
      subscriptions.delete(message.request);
      return undefined;
    case "bucket":
      return openBucket(connection, message.bucket, message.replicas);
    case "put":
      return put(message);
    case "get":
      return read(bucketOf(message.bucket), message.key);
    case "list":
      return list(connection, message.bucket, message.below);
    case "purge": {
      const { bucket, below } = message;
      const manager = await jetstreamManager(connection);
      await manager.streams.purge(`KV_${bucket}`, { filter: `$KV.${bucket}.${below}.>` });
      return undefined;
    }
    case "objects":
      objects ??= new NatsObjects(connection);
      return objects.openBucket(message.bucket, message.replicas);
    case "object-put":
      return objects?.put(message.bucket, message.name, message, message.vouched);
    case "content":
      return contentOf(message);
    case "object-note":
      return objects?.note(message.bucket, message.name);
    case "object-get":
      return message.path === undefined
        ? objects?.text(message.bucket, message.name, message.expected, message.maxBytes)
        : objects?.fetch(message.bucket, message.name, message.path, message.expected);
    case "object-has":
      return objects?.has(message.bucket, message.name);
    case "object-delete":
      return objects?.delete(message.bucket, message.name);
    case "object-list":
      return objects?.list(message.bucket, message.below);
    case "present": {
      const known = members.get(message.id);
      if (known) return known.become(message);
      members.set(message.id, new PresentMember(connection, message));
      return tellServer(connection); // whoever asks next is heard
    }
    case "absent":
      members.get(message.id)?.stop();
      members.delete(message.id);
      return undefined;
    case "close":
      for (const member of members.values()) member.stop();
      await connection.flush().catch(() => {});
      await connection.close();
      return undefined;
  }
}

try {
  const connection = await start();
  const inbox = memberInbox(options);
  port.on("message", (message: ToThread) => {
    const id = "id" in message ? message.id : 0;
    act(connection, inbox, message).then(
      (value) => {
        if (id > 0) send({ type: "settled", id, value });
        if (message.type === "close") port.close();
      },
      (error) => send({ type: "settled", id, failure: failureOf(error) }),
    );
  });
  sayConnected(connection);
} catch (error) {
  const failure = failureOf(error);
  send({
    type: "settled",
    id: 0,
    failure: failure.kind === "refused" ? failure : { ...failure, kind: "unreachable" },
  });
  port.close();
}
