/**
 * The control plane over NATS. Core messages carry what need not survive (beats, commands, events); two key-value buckets
 * of JetStream keep what must: who announced itself under which incarnation, and the records of runs.
 *
 * Works with servers from 2.9: no message expires by itself there, so leases are beats of our own.
 *
 * CP1 of two announcements under one name the later has the higher incarnation: it is written by compare-and-set.
 * CP2 commands are addressed to an incarnation, so one that is no more never acts on them.
 * CP3 where keys are given, no command passes in the clear, and none acts that a trusted key has not signed (`trust.ts`).
 */
import {
  type Announcement,
  type CommandHandler,
  type ControlPlane,
  type Member,
  type MemberKind,
  type MembershipChange,
  readMessage,
  roleToCommand,
  TreadleError,
} from "@treadle/contracts";
import { z } from "zod";
import { answerTo, readAnswer } from "./answers.ts";
import { parseBounded, readJson } from "./bounded-json.ts";
import { mustKeep, throughElections } from "./elections.ts";
import { MembershipState } from "./membership-state.ts";
import { announceAttempts, entryOf, NatsAnnouncement, readEntry } from "./nats-announcement.ts";
import type { NatsConnection } from "./nats-connection.ts";
import { checkName, type NatsControlPlaneOptions, openNatsConnection, requireTrust } from "./open-nats-connection.ts";
import { Trust } from "./trust.ts";

const maxBeatMs = 1000;
const beatsALease = 5;
const tickMs = 250;
/** Members answer a probe at once; this is how long the slowest may take to be seen from the start. */
const probeMs = 300;
const maxPayloadBytes = 900_000;

const Beat = z.object({ incarnation: z.int(), goodbye: z.string().max(1000).optional() });
const Command = z.object({ method: z.string(), body: z.unknown() });
const Kind = z.enum(["node", "run"]);

/** Rejects with `control-plane.unreachable`, `control-plane.refused` or `config.invalid`. */
export async function openNatsControlPlane(options: NatsControlPlaneOptions): Promise<ControlPlane> {
  const trust = Trust.of(options.nats);
  const connection = await openNatsConnection(options);
  const plane = new NatsControlPlane(connection, options, trust);
  try {
    await plane.open();
    return plane;
  } catch (error) {
    await plane.close();
    throw error;
  }
}

class NatsControlPlane implements ControlPlane {
  readonly #connection: NatsConnection;
  readonly #options: NatsControlPlaneOptions;
  readonly #prefix: string;
  readonly #state: MembershipState;
  readonly #memberListeners = new Set<(change: MembershipChange) => void>();
  readonly #announced = new Set<NatsAnnouncement>();
  readonly #trust: Trust | undefined;
  /** by kind and name: how that member is written to, which throws where it is not trusted */
  readonly #sealKeys = new Map<string, { readonly incarnation: number; readonly key: () => string }>();
  #ticker: NodeJS.Timeout | undefined;

  constructor(connection: NatsConnection, options: NatsControlPlaneOptions, trust: Trust | undefined) {
    this.#trust = trust;
    this.#connection = connection;
    this.#options = options;
    this.#prefix = options.nats.subjectPrefix;
    this.#state = new MembershipState(options.nats.leaseMs, performance.now());
  }

  get isConnected(): boolean {
    return this.#connection.isConnected;
  }

  get #members(): string {
    return `${this.#prefix}-members`;
  }

  get #records(): string {
    return `${this.#prefix}-records`;
  }

  async open(): Promise<void> {
    const { replicas } = this.#options.nats;
    for (const bucket of [this.#members, this.#records]) {
      await mustKeep(() => this.#connection.openBucket(bucket, replicas));
    }
    this.#connection.onConnection((isConnected) => {
      this.#state.connection(isConnected, performance.now());
    });
    this.#connection.onRefreshed(() => {
      for (const announcement of this.#announced) announcement.refreshed();
    });
    await this.#connection.subscribe(`${this.#prefix}.beat.*.*`, (subject, data) => this.#heard(subject, data));
    await throughElections(() => this.#connection.watch(this.#members, (key, data) => this.#entered(key, data)));
    this.#connection.publish(`${this.#prefix}.probe`, "");
    await new Promise((resolve) => setTimeout(resolve, probeMs));
    this.#ticker = setInterval(() => this.#tell(this.#state.tick(performance.now())), tickMs);
  }

  onConnection(listener: (isConnected: boolean) => void): void {
    this.#connection.onConnection(listener);
  }

  async announce(kind: MemberKind, name: string, body: unknown, handler: CommandHandler): Promise<Announcement> {
    checkName(kind, name);
    requireTrust(this.#options.nats);
    const connection = this.#connection;
    const key = `${kind}.${name}`;
    let incarnation = 0;
    for (let attempt = 0; incarnation === 0; attempt++) {
      if (attempt === announceAttempts) {
        throw new TreadleError(
          "control-plane.unreachable",
          `${kind} '${name}' could not be announced: others announce the same name all the time`,
        );
      }
      await throughElections(async () => {
        const before = await connection.get(this.#members, key);
        // No incarnation is above the revision that it was written as, while servers keep what they had; so one above that
        // of a withdrawal is new.
        const revision = before?.revision ?? (await connection.revision(this.#members, key));
        const next = (readEntry(before?.data)?.incarnation ?? revision) + 1;
        const data = entryOf(key, next, body, this.#trust);
        const outcome = await connection.put(this.#members, key, data, revision); // CP1
        if (outcome === "put") incarnation = next;
      });
    }
    const stopServing = await connection.subscribe(
      `${this.#prefix}.command.${key}.${incarnation}`, // CP2
      (subject, data, reply) => void this.#answer(kind, handler, subject, data, reply),
    );
    const stopBeating = connection.beat(`${this.#prefix}.beat.${key}`, JSON.stringify({ incarnation }), {
      intervalMs: Math.min(maxBeatMs, this.#options.nats.leaseMs / beatsALease),
      probe: `${this.#prefix}.probe`,
    });
    const announcement = new NatsAnnouncement(connection, this.#members, key, incarnation, body, this.#trust, {
      goodbye: (reason) => {
        stopBeating();
        connection.publish(`${this.#prefix}.beat.${key}`, JSON.stringify({ incarnation, goodbye: reason }));
      },
      end: () => {
        stopBeating();
        this.#announced.delete(announcement);
        return stopServing();
      },
    });
    this.#announced.add(announcement);
    return announcement;
  }

  members(kind: MemberKind): readonly Member[] {
    return this.#state.members(kind);
  }

  onMember(kind: MemberKind, listener: (change: MembershipChange) => void): () => void {
    const ofKind = (change: MembershipChange) => {
      if (change.member.kind === kind) listener(change);
    };
    this.#memberListeners.add(ofKind);
    return () => this.#memberListeners.delete(ofKind);
  }

  async command(
    { kind, name, incarnation }: Member,
    method: string,
    body: unknown,
    { timeoutMs }: { readonly timeoutMs: number },
  ): Promise<unknown> {
    const subject = `${this.#prefix}.command.${kind}.${checkName(kind, name)}.${incarnation}`;
    const plain = JSON.stringify({ method, body });
    const asked = this.#trust?.ask(subject, plain, this.#sealKeyOf(kind, name, incarnation));
    const text = bounded(asked?.text ?? plain, `'${method}'`);
    const answer = await this.#connection.request(subject, text, timeoutMs).catch((cause: TreadleError) => {
      if (cause.code === "node.lost") {
        throw new TreadleError("node.lost", `${kind} '${name}' is not there any more`, { origin: { node: name } });
      }
      if (cause.code === "call.timeout") {
        throw new TreadleError("call.timeout", `${kind} '${name}' did not answer '${method}' within ${timeoutMs} ms`);
      }
      throw cause;
    });
    return readAnswer(asked === undefined ? answer : asked.open(answer)); // CP3
  }

  /** Of the incarnation that is there: an entry may have come later than the beat. */
  #sealKeyOf(kind: MemberKind, name: string, incarnation: number): string {
    const known = this.#sealKeys.get(`${kind}.${name}`);
    if (known?.incarnation === incarnation) return known.key();
    throw new TreadleError("node.lost", `${kind} '${name}' is not there any more`, { origin: { node: name } });
  }

  publish(topic: string, body: unknown): void {
    this.#connection.publish(`${this.#prefix}.topic.${topic}`, bounded(JSON.stringify(body), `topic '${topic}'`));
  }

  subscribe(topic: string, listener: (body: unknown) => void): () => void {
    let isOver = false;
    const subscribed = this.#connection.subscribe(`${this.#prefix}.topic.${topic}`, (_, data) => {
      const body = isOver ? undefined : readJson(z.unknown(), data);
      if (body !== undefined) listener(body);
    });
    subscribed.catch(() => {}); // the connection has ended
    return () => {
      isOver = true;
      void subscribed.then((end) => end()).catch(() => {});
    };
  }

  async keep(name: string, value: unknown): Promise<void> {
    await this.#connection.put(this.#records, checkName("record", name), bounded(JSON.stringify(value), `'${name}'`));
  }

  async kept(): Promise<ReadonlyMap<string, unknown>> {
    const found = new Map<string, unknown>();
    for (const { key, data } of await this.#connection.list(this.#records)) {
      const value = readJson(z.unknown(), data);
      if (value !== undefined) found.set(key, value);
    }
    return found;
  }

  async close(): Promise<void> {
    clearInterval(this.#ticker);
    if (this.isConnected) {
      await Promise.all([...this.#announced].map((each) => each.withdraw("it closed").catch(() => {})));
    }
    await this.#connection.close();
  }

  async #answer(
    kind: MemberKind,
    handler: CommandHandler,
    subject: string,
    data: string,
    reply: string | undefined,
  ): Promise<void> {
    let seal = (answer: string) => answer;
    const answer = await answerTo(() => {
      if (this.#trust === undefined) {
        const { method, body } = readMessage(Command, parseBounded(data));
        return handler(method, body);
      }
      const received = this.#trust.receive(subject, data, (text, { role }) => {
        const command = readMessage(Command, parseBounded(text));
        const needed = roleToCommand(kind, command.method);
        if (role === needed) return command;
        throw new TreadleError(
          "control-plane.untrusted",
          `'${command.method}' came from a ${role}; only a ${needed} may ask for it`,
        );
      });
      seal = received.seal;
      return handler(received.value.method, received.value.body, received.sender);
    });
    if (reply !== undefined) this.#connection.publish(reply, seal(answer));
  }

  #heard(subject: string, data: string): void {
    const [kindWord, name] = subject.slice(`${this.#prefix}.beat.`.length).split(".");
    const kind = Kind.safeParse(kindWord);
    const beat = readJson(Beat, data);
    if (!kind.success || name === undefined || beat === undefined) return; // a stranger's
    const { incarnation, goodbye } = beat;
    const now = performance.now();
    this.#tell(
      goodbye === undefined
        ? this.#state.beat(kind.data, name, incarnation, now)
        : this.#state.goodbye(kind.data, name, incarnation, goodbye),
    );
  }

  #entered(key: string, data: string | undefined): void {
    const at = key.indexOf(".");
    const kind = Kind.safeParse(key.slice(0, at));
    if (!kind.success) return;
    const name = key.slice(at + 1);
    if (data === undefined) {
      this.#sealKeys.delete(key);
      this.#tell(this.#state.removed(kind.data, name));
      return;
    }
    const entry = readEntry(data);
    if (entry === undefined) return;
    for (const announcement of [...this.#announced]) {
      if (announcement.key === key && announcement.incarnation < entry.incarnation) announcement.replaced();
    }
    const { incarnation, body, proof } = entry;
    const trust = this.#trust;
    if (trust) this.#sealKeys.set(key, { incarnation, key: () => trust.sealKeyOf(key, incarnation, body, proof) });
    this.#tell(this.#state.entry({ kind: kind.data, name, incarnation, body }, performance.now()));
  }

  #tell(changes: readonly MembershipChange[]): void {
    for (const change of changes) for (const listener of [...this.#memberListeners]) listener(change);
  }
}

function bounded(text: string, what: string): string {
  const bytes = Buffer.byteLength(text);
  if (bytes <= maxPayloadBytes) return text;
  throw new TreadleError(
    "link.frame-too-large",
    `${what} takes '${bytes}' bytes over the control plane, at most ${maxPayloadBytes} are allowed; pass less in it`,
  );
}
