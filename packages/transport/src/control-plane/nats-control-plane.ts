/**
 * The control plane over NATS. Core messages carry what need not survive: entries, beats, commands, events. A key-value
 * bucket of JetStream keeps what must, the records of runs. Nodes need no JetStream, which their keys may not ask.
 *
 * A member says what it is (its entry) when it announces itself, when that changes, when somebody probes, and when it is
 * asked. Beats name the entry's incarnation and version, and whoever hears of one that it lacks asks for it.
 *
 * CP1 of two announcements under one name the later has the higher incarnation: it is above the clock's and above every one
 *    that a member remembers, who tells it. Entries of older ones than who is there count nowhere. Which of several stays that
 *    begin at the same time says `name-contest.ts`.
 * CP2 commands are addressed to an incarnation, so one that is no more never acts on them.
 * CP3 where keys are given, no command passes in the clear, and none acts that a trusted key has not signed (`trust.ts`).
 * CP4 an answer goes where members get answers, or nowhere: nobody has another say on a subject what it may not itself.
 * CP5 where keys are given, an entry that no trusted key has signed hides nobody: it counts only under a name of which nothing
 *    else is known, so that it can be told why its member is not used.
 * CP6 without keys nobody joins at, and no command acts that came through, a server that says that it listens beyond loopback.
 */

import { setTimeout as delay } from "node:timers/promises";
import {
  type Announcement,
  type CommandHandler,
  type ControlPlane,
  type KeptValue,
  type Member,
  type MemberKind,
  type MembershipChange,
  readMessage,
  roleToCommand,
  TreadleError,
} from "@treadle/contracts";
import { z } from "zod";
import { answerTo, readAnswer } from "./answers.ts";
import { boundedText, parseBounded, readJson } from "./bounded-json.ts";
import { mustKeep } from "./elections.ts";
import { Envelopes } from "./envelopes.ts";
import { MembershipState } from "./membership-state.ts";
import { type Claim, isAbove, settleName } from "./name-contest.ts";
import {
  identityOf,
  incarnationNow,
  memberIn,
  NatsAnnouncement,
  presenceQuestion,
  readBeat,
  readEntry,
} from "./nats-announcement.ts";
import type { NatsConnection } from "./nats-connection.ts";
import { isAnswer } from "./nkey-seed.ts";
import { checkName, type NatsControlPlaneOptions, openNatsConnection, requireTrust } from "./open-nats-connection.ts";
import { type PresenceProof, RunProof, type Sealer, Trust } from "./trust.ts";

const maxBeatMs = 1000;
const beatsALease = 5;
const tickMs = 250;
/** Members answer a probe at once; this is how long the slowest may take to be seen from the start. */
const probeMs = 300;
/** A server that is there answers at once; what is asked of one that has died takes ten seconds to fail. */
const recordsMs = 1500;
/** Who remembers a newer one of a name says so at once. */
const objectionMs = 100;
/** How long a rival for a name has to prove that it is there. */
const rivalMs = 2000;
/** Anybody may say in the server's place that nobody listens: a member that is there proves it in this part of a question's time. */
const gracePart = 0.2;
const presenceMs = 15_000;
const askAgainMs = 200;
const maxEntries = 10_000;
/** Enough to tell what is wrong with them. */
const maxUntrusted = 100;
const maxUntrustedLength = 65_536;
const announceAttempts = 10;

const Command = z.object({ method: z.string(), body: z.unknown() });
/** As a runner with a key keeps it; without keys it is the value alone. */
const SignedRecord = z.object({ value: z.unknown(), proof: RunProof });
/** Nothing else that is signed of a run looks like it. */
const recorded = (record: unknown) => ({ record });

export type NatsPlaneOptions = NatsControlPlaneOptions & {
  /** false for nodes, whose keys ask nothing of JetStream: `keep` and `kept` are refused then */
  readonly keepsRecords?: boolean;
};

/** Rejects with `control-plane.unreachable`, `control-plane.refused` or `config.invalid`. */
export async function openNatsControlPlane(options: NatsPlaneOptions): Promise<ControlPlane> {
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

/** An entry as it was heard. */
type HeardEntry = {
  readonly incarnation: number;
  readonly data: string;
  /** how that member is written to, or why nobody does */
  readonly seal: { readonly key: string } | { readonly problem: TreadleError };
};

type Question = { readonly key: string; readonly incarnation: number; readonly proven: () => void };

const isTrusted = ({ seal }: HeardEntry): boolean => "key" in seal;

class NatsControlPlane implements ControlPlane {
  readonly #connection: NatsConnection;
  readonly #options: NatsPlaneOptions;
  readonly #prefix: string;
  readonly #state: MembershipState;
  readonly #memberListeners = new Set<(change: MembershipChange) => void>();
  readonly #announced = new Set<NatsAnnouncement>();
  readonly #trust: Trust | undefined;
  /** by which commands are sealed where there are no keys */
  readonly #envelopes = new Envelopes();
  /** by kind and name */
  readonly #entries = new Map<string, HeardEntry>();
  /** whether members are there, by the word that they have to sign */
  readonly #questions = new Map<string, Question>();
  /** until what is kept of runs can be asked for */
  #recordsOpen: Promise<void> | undefined;
  #ticker: NodeJS.Timeout | undefined;

  constructor(connection: NatsConnection, options: NatsPlaneOptions, trust: Trust | undefined) {
    this.#trust = trust;
    this.#connection = connection;
    this.#options = options;
    this.#prefix = options.nats.subjectPrefix;
    this.#state = new MembershipState(options.nats.leaseMs, performance.now());
  }

  get isConnected(): boolean {
    return this.#connection.isConnected;
  }

  /** It also tells this process from others that announce the same name at the same instant. */
  get #sealKey(): string {
    return this.#trust?.sealKey ?? this.#envelopes.sealKey;
  }

  get #records(): string {
    return `${this.#prefix}-records`;
  }

  async open(): Promise<void> {
    const { keepsRecords = true } = this.#options;
    // Nobody waits for long: while servers elect who leads it, members find each other without it.
    if (keepsRecords) await Promise.race([this.#openRecords(), delay(recordsMs, undefined, { ref: false })]);
    this.#connection.onConnection((isConnected) => {
      this.#state.connection(isConnected, performance.now());
      if (isConnected) this.#probe(); // what happened meanwhile is asked for, rather than hoped for
    });
    const ofMembers = { ofMembers: true };
    const connection = this.#connection;
    await connection.subscribe(`${this.#prefix}.entry.*.*`, (subject, data) => this.#entered(subject, data), ofMembers);
    await connection.subscribe(`${this.#prefix}.beat.*.*`, (subject, data) => this.#heard(subject, data), ofMembers);
    this.#probe();
    await delay(probeMs);
    this.#ticker = setInterval(() => this.#tell(this.#state.tick(performance.now())), tickMs);
  }

  /** Again where it has failed. */
  #openRecords(): Promise<void> {
    this.#recordsOpen ??= mustKeep(() => this.#connection.openBucket(this.#records, this.#options.nats.replicas)).catch(
      (error) => {
        this.#recordsOpen = undefined;
        throw error;
      },
    );
    this.#recordsOpen.catch(() => {}); // whoever asks for records is told
    return this.#recordsOpen;
  }

  #probe(): void {
    this.#connection.publish(`${this.#prefix}.probe`, "");
  }

  onConnection(listener: (isConnected: boolean) => void): void {
    this.#connection.onConnection(listener);
  }

  async announce(kind: MemberKind, name: string, body: unknown, handler: CommandHandler): Promise<Announcement> {
    checkName(kind, name);
    this.#requireTrust();
    const connection = this.#connection;
    const { leaseMs } = this.#options.nats;
    const key = `${kind}.${name}`;
    const known = this.#entries.get(key);
    let newest = known !== undefined && isTrusted(known) ? known.incarnation : 0; // CP5
    const stopListening = await connection.subscribe(`${this.#prefix}.ask.${key}`, (_, data) => {
      newest = Math.max(newest, this.#objection(key, data));
    });
    for (let attempt = 0; attempt < announceAttempts; attempt++) {
      const incarnation = Math.max(incarnationNow(), newest + 1); // CP1
      const stopServing = await connection.subscribe(
        `${this.#prefix}.command.${key}.${incarnation}`, // CP2
        (subject, data, reply) => void this.#answer(kind, handler, subject, data, reply),
      );
      const stopProving = await connection.subscribe(`${this.#prefix}.ask.${key}`, (_, data) => {
        for (const each of this.#announced) if (each.key === key && each.incarnation === incarnation) each.asked(data);
      });
      const announcement = new NatsAnnouncement(connection, {
        prefix: this.#prefix,
        key,
        incarnation,
        body,
        trust: this.#trust,
        seal: this.#sealKey,
        intervalMs: Math.min(maxBeatMs, leaseMs / beatsALease),
        end: async () => {
          this.#announced.delete(announcement);
          await Promise.all([stopServing(), stopProving()]);
        },
      });
      this.#announced.add(announcement);
      await announcement.start();
      await delay(objectionMs);
      const heard = this.#entries.get(key);
      if (heard !== undefined && isTrusted(heard)) newest = Math.max(newest, heard.incarnation);
      const decision = settleName({
        own: { incarnation, identity: this.#sealKey },
        newest, // who hears an older one said again objects with this very entry
        isBeaten: announcement.isReplaced,
        isRivalThere: newest > incarnation && (await this.#isRivalThere(kind, name, incarnation)),
      });
      if (decision.type === "rise") {
        await announcement.withdraw("it begins again above one that it did not know");
        continue;
      }
      await stopListening();
      if (decision.type === "give way") announcement.replaced();
      return announcement;
    }
    await stopListening();
    throw new TreadleError(
      "control-plane.unreachable",
      `${kind} '${name}' could not be announced: others announce the same name all the time`,
    );
  }

  /** One that has announced itself above this incarnation, and is no recording of who was there before. */
  async #isRivalThere(kind: MemberKind, name: string, incarnation: number): Promise<boolean> {
    const rival = this.#state
      .members(kind)
      .find((member) => member.name === name && member.incarnation > incarnation && member.isUntrusted !== true);
    return rival !== undefined && (await this.provesPresence(rival, rivalMs));
  }

  #requireTrust(): void {
    requireTrust(this.#options.nats, this.#connection.listensOn); // CP6
  }

  /** The incarnation of the entry by which somebody objects to one that is older; 0 where it is no such entry. */
  #objection(key: string, data: string): number {
    const entry = readEntry(data);
    const heard = entry && this.#hear(key, entry, data);
    return heard !== undefined && isTrusted(heard) ? heard.incarnation : 0;
  }

  #hear(key: string, entry: NonNullable<ReturnType<typeof readEntry>>, data: string): HeardEntry {
    const { incarnation } = entry;
    try {
      return { incarnation, data, seal: { key: this.#trust?.sealKeyOf(key, entry) ?? entry.seal ?? "" } };
    } catch (error) {
      return { incarnation, data, seal: { problem: error as TreadleError } };
    }
  }

  members(kind: MemberKind): readonly Member[] {
    return this.#state.members(kind);
  }

  async provesPresence({ kind, name, incarnation }: Member, withinMs = presenceMs): Promise<boolean> {
    if (this.#trust === undefined) return true;
    const word = crypto.randomUUID();
    const key = `${kind}.${checkName(kind, name)}`;
    return new Promise<boolean>((resolve) => {
      const settle = (isThere: boolean) => {
        this.#questions.delete(word);
        clearTimeout(timer);
        clearInterval(again);
        resolve(isThere);
      };
      const timer = setTimeout(() => settle(false), withinMs);
      this.#questions.set(word, { key, incarnation, proven: () => settle(true) });
      const again = setInterval(() => this.#ask(key, presenceQuestion(word)), askAgainMs);
      this.#ask(key, presenceQuestion(word));
    });
  }

  /** TR6. */
  #present(key: string, incarnation: number, presence: PresenceProof): void {
    const asked = presence.words.flatMap((word) => this.#questions.get(word) ?? []);
    const own = asked.filter((each) => each.key === key && each.incarnation === incarnation);
    const known = this.#entries.get(key);
    if (own.length === 0 || known?.incarnation !== incarnation || !isTrusted(known)) return;
    const from = readEntry(known.data)?.proof?.from;
    if (from === undefined || this.#trust?.isPresent(key, incarnation, from, presence) !== true) return;
    for (const { proven } of own) proven();
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
    this.#requireTrust(); // another server may be there since, at which others hear what a command says
    const subject = `${this.#prefix}.command.${kind}.${checkName(kind, name)}.${incarnation}`;
    const plain = JSON.stringify({ method, body });
    const memberKey = this.#sealKeyOf(kind, name, incarnation);
    const asked = this.#trust?.ask(subject, plain, memberKey) ?? this.#envelopes.ask(plain, memberKey);
    const text = boundedText(asked.text, `'${method}'`);
    const isThere = () => this.provesPresence({ kind, name, incarnation, body: undefined }, timeoutMs * gracePart);
    const request = {
      subject,
      data: text,
      timeoutMs,
      open: asked.open,
      ...(this.#trust === undefined ? {} : { isThere }),
    };
    const answer = await this.#connection.request(request).catch((cause: TreadleError) => {
      if (cause.code === "node.lost") {
        throw new TreadleError("node.lost", `${kind} '${name}' is not there any more`, { origin: { node: name } });
      }
      if (cause.code === "call.timeout") {
        throw new TreadleError("call.timeout", `${kind} '${name}' did not answer '${method}' within ${timeoutMs} ms`, {
          cause: cause.cause,
        });
      }
      throw cause;
    });
    return readAnswer(answer); // CP3
  }

  /** Of the incarnation that is there: an entry may have come later than the beat. */
  #sealKeyOf(kind: MemberKind, name: string, incarnation: number): string {
    const known = this.#entries.get(`${kind}.${name}`);
    if (known?.incarnation === incarnation) {
      if ("problem" in known.seal) throw known.seal.problem;
      return known.seal.key;
    }
    throw new TreadleError("node.lost", `${kind} '${name}' is not there any more`, { origin: { node: name } });
  }

  publish(topic: string, body: unknown): void {
    this.#connection.publish(`${this.#prefix}.topic.${topic}`, boundedText(JSON.stringify(body), `topic '${topic}'`));
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
    this.#requireRecords();
    await this.#openRecords();
    const proof = this.#trust?.proveRun(name, recorded(value));
    const kept: unknown = proof === undefined ? value : ({ value, proof } satisfies z.input<typeof SignedRecord>);
    await this.#connection.put(
      this.#records,
      checkName("record", name),
      boundedText(JSON.stringify(kept), `'${name}'`),
    );
  }

  async kept(): Promise<ReadonlyMap<string, KeptValue>> {
    this.#requireRecords();
    await this.#openRecords();
    const found = new Map<string, KeptValue>();
    for (const { key, data } of await this.#connection.list(this.#records)) {
      const kept = readJson(z.unknown(), data);
      if (kept !== undefined) found.set(key, this.#readKept(key, kept));
    }
    return found;
  }

  /** TR5 */
  #readKept(name: string, kept: unknown): KeptValue {
    const { value, proof } = SignedRecord.safeParse(kept).data ?? { value: kept, proof: undefined };
    if (this.#trust === undefined) return { value };
    try {
      this.#trust.checkRun(name, recorded(value), proof, "the record");
      return { value };
    } catch {
      return { value, isUntrusted: true };
    }
  }

  #requireRecords(): void {
    if (this.#options.keepsRecords !== false) return;
    throw new TreadleError("control-plane.refused", "nodes keep no records of runs; ask with a runner's key");
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
    if (reply !== undefined && !isAnswer(reply)) return; // CP4
    let seal: Sealer = (answer) => answer;
    const refused = (sealed: Sealer) => {
      seal = sealed;
    };
    const answer = await answerTo(() => {
      if (this.#trust === undefined) {
        this.#requireTrust(); // another server may be there since
        const received = this.#envelopes.receive(data);
        seal = received.seal;
        const { method, body } = readMessage(Command, parseBounded(received.text));
        return handler(method, body);
      }
      const received = this.#trust.receive(
        subject,
        data,
        (text, { role }) => {
          const command = readMessage(Command, parseBounded(text));
          const needed = roleToCommand(kind, command.method);
          if (role === needed) return command;
          throw new TreadleError(
            "control-plane.untrusted",
            `'${command.method}' came from a ${role}; only a ${needed} may ask for it`,
          );
        },
        refused,
      );
      seal = received.seal;
      const { value, sender, sealKey } = received;
      const is = (of: MemberKind, name: string): boolean => {
        const known = this.#entries.get(`${of}.${name}`);
        return known !== undefined && "key" in known.seal && known.seal.key === sealKey;
      };
      return handler(value.method, value.body, { ...sender, is });
    });
    if (reply !== undefined) this.#connection.publish(reply, seal(answer)); // CP3
  }

  #heard(subject: string, data: string): void {
    const member = memberIn(subject);
    const beat = readBeat(data);
    if (member === undefined || beat === undefined) return; // a stranger's
    const { kind, name } = member;
    const { incarnation, version = 0, goodbye, presence } = beat;
    if (presence !== undefined) this.#present(`${kind}.${name}`, incarnation, presence);
    const now = performance.now();
    if (goodbye !== undefined) {
      this.#tell(this.#state.goodbye(kind, name, incarnation, goodbye));
      return;
    }
    if (this.#state.lacks(kind, name, incarnation, version)) this.#ask(`${kind}.${name}`, "");
    this.#tell(this.#state.beat(kind, name, incarnation, now));
  }

  #ask(key: string, data: string): void {
    this.#connection.publish(`${this.#prefix}.ask.${key}`, data);
  }

  #entered(subject: string, data: string): void {
    const member = memberIn(subject);
    const entry = readEntry(data);
    if (member === undefined || entry === undefined) return; // a stranger's
    const { kind, name } = member;
    const key = `${kind}.${name}`;
    const { incarnation, version, body } = entry;
    const known = this.#entries.get(key);
    const heard = known?.data === data ? known : this.#hear(key, entry, data);
    if (!isTrusted(heard) && (data.length > maxUntrustedLength || !this.#mayBeHeard(known))) return; // CP5
    if (known !== undefined && isTrusted(heard) && !isTrusted(known)) {
      this.#tell(this.#state.disown(kind, name, "another one is there, whose key is trusted")); // CP5
    } else if (known !== undefined && known.incarnation > incarnation) this.#ask(key, known.data); // CP1
    if (this.#state.isOutdated(kind, name, incarnation, version)) return;
    const claim: Claim = { incarnation, identity: identityOf(entry) };
    for (const announcement of [...this.#announced]) {
      if (announcement.key !== key || !isTrusted(heard)) continue;
      const own: Claim = { incarnation: announcement.incarnation, identity: this.#sealKey };
      if (isAbove(claim, own)) announcement.replaced();
      else if (claim.incarnation === own.incarnation && isAbove(own, claim)) this.#ask(key, ""); // says its own entry again
    }
    this.#entries.delete(key);
    this.#entries.set(key, heard); // the one that was heard last is forgotten last
    if (this.#entries.size > maxEntries) this.#entries.delete(this.#entries.keys().next().value as string);
    const mark = isTrusted(heard) ? {} : { isUntrusted: true };
    this.#tell(this.#state.entry({ kind, name, incarnation, body, ...mark }, version, performance.now()));
  }

  /** Of an entry that nobody trusted has signed. `known`: what was heard under its name before. */
  #mayBeHeard(known: HeardEntry | undefined): boolean {
    if (known !== undefined) return !isTrusted(known);
    return [...this.#entries.values()].filter((each) => !isTrusted(each)).length < maxUntrusted;
  }

  #tell(changes: readonly MembershipChange[]): void {
    for (const change of changes) for (const listener of [...this.#memberListeners]) listener(change);
  }
}
