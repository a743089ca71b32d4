/**
 * The control plane of one process: what a run on one machine uses, with nothing to install. Members share their
 * process, so none can fall silent.
 */
import {
  type Announcement,
  type CommandHandler,
  type ControlPlane,
  type KeptValue,
  type Member,
  type MemberKind,
  type MembershipChange,
  TreadleError,
} from "@treadle/contracts";
import { answerTo, readAnswer } from "./answers.ts";
import { topicMatches } from "./topics.ts";

type Present = { member: Member; readonly handler: CommandHandler; readonly replaced: () => void };

const keyOf = (kind: MemberKind, name: string): string => `${kind}.${name}`;
const copyOf = (value: unknown): unknown => (value === undefined ? undefined : JSON.parse(JSON.stringify(value)));

/** What several planes of one process have in common. */
class Hub {
  readonly present = new Map<string, Present>();
  readonly incarnations = new Map<string, number>();
  readonly memberListeners = new Set<(change: MembershipChange) => void>();
  readonly topicListeners = new Set<{ readonly pattern: string; readonly listener: (body: unknown) => void }>();
  readonly kept = new Map<string, string>();

  tell(change: MembershipChange): void {
    for (const listener of [...this.memberListeners]) listener(change);
  }

  leave(key: string, incarnation: number, reason: string): void {
    const present = this.present.get(key);
    if (present?.member.incarnation !== incarnation) return;
    this.present.delete(key);
    this.tell({ type: "left", member: present.member, reason });
  }
}

class LocalControlPlane implements ControlPlane {
  readonly isConnected = true;
  readonly #hub: Hub;
  readonly #announced = new Set<Announcement>();
  readonly #ends: (() => void)[] = [];

  constructor(hub: Hub) {
    this.#hub = hub;
  }

  onConnection(): void {} // it never changes

  async announce(kind: MemberKind, name: string, body: unknown, handler: CommandHandler): Promise<Announcement> {
    const hub = this.#hub;
    const key = keyOf(kind, name);
    const incarnation = (hub.incarnations.get(key) ?? 0) + 1;
    hub.incarnations.set(key, incarnation);
    const before = hub.present.get(key);
    if (before) {
      hub.leave(key, before.member.incarnation, `another process announced itself as '${name}'`);
      before.replaced();
    }
    const listeners: (() => void)[] = [];
    const member: Member = { kind, name, incarnation, body: copyOf(body) };
    const present: Present = { member, handler, replaced: () => listeners.forEach((each) => void each()) };
    hub.present.set(key, present);
    hub.tell({ type: "joined", member });
    const announcement: Announcement = {
      incarnation,
      update: async (changed) => {
        if (hub.present.get(key) !== present) return;
        present.member = { ...present.member, body: copyOf(changed) };
        hub.tell({ type: "changed", member: present.member });
      },
      withdraw: async (reason) => {
        this.#announced.delete(announcement);
        hub.leave(key, incarnation, reason);
      },
      onReplaced: (listener) => void listeners.push(listener),
    };
    this.#announced.add(announcement);
    return announcement;
  }

  async provesPresence({ kind, name, incarnation }: Member): Promise<boolean> {
    return this.#hub.present.get(keyOf(kind, name))?.member.incarnation === incarnation;
  }

  members(kind: MemberKind): readonly Member[] {
    return [...this.#hub.present.values()].map(({ member }) => member).filter((member) => member.kind === kind);
  }

  onMember(kind: MemberKind, listener: (change: MembershipChange) => void): () => void {
    const { memberListeners } = this.#hub;
    const ofKind = (change: MembershipChange) => {
      if (change.member.kind === kind) listener(change);
    };
    memberListeners.add(ofKind);
    return this.#endable(() => memberListeners.delete(ofKind));
  }

  async command(
    member: Member,
    method: string,
    body: unknown,
    options: { readonly timeoutMs: number },
  ): Promise<unknown> {
    const { kind, name, incarnation } = member;
    const present = this.#hub.present.get(keyOf(kind, name));
    if (present?.member.incarnation !== incarnation) {
      throw new TreadleError("node.lost", `${kind} '${name}' is not there any more`, { origin: { node: name } });
    }
    const answer = answerTo(() => present.handler(method, copyOf(body)));
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      const message = `${kind} '${name}' did not answer '${method}' within ${options.timeoutMs} ms`;
      timer = setTimeout(() => reject(new TreadleError("call.timeout", message)), options.timeoutMs);
    });
    try {
      return readAnswer(await Promise.race([answer, late]));
    } finally {
      clearTimeout(timer);
    }
  }

  publish(topic: string, body: unknown): void {
    for (const { pattern, listener } of [...this.#hub.topicListeners]) {
      if (topicMatches(pattern, topic)) listener(copyOf(body));
    }
  }

  subscribe(topic: string, listener: (body: unknown) => void): () => void {
    const subscription = { pattern: topic, listener };
    this.#hub.topicListeners.add(subscription);
    return this.#endable(() => this.#hub.topicListeners.delete(subscription));
  }

  async keep(name: string, value: unknown): Promise<void> {
    this.#hub.kept.set(name, JSON.stringify(value));
  }

  async kept(): Promise<ReadonlyMap<string, KeptValue>> {
    return new Map([...this.#hub.kept].map(([name, text]) => [name, { value: JSON.parse(text) as unknown }]));
  }

  async close(): Promise<void> {
    for (const announcement of [...this.#announced]) await announcement.withdraw("it closed");
    for (const end of this.#ends) end();
  }

  #endable(end: () => unknown): () => void {
    this.#ends.push(() => void end());
    return () => void end();
  }
}

/** Planes that see one another, and nothing outside of this process. */
export function localControlPlanes(): { connect(): ControlPlane } {
  const hub = new Hub();
  return { connect: () => new LocalControlPlane(hub) };
}
