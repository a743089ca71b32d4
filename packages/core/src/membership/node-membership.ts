/**
 * Which nodes a run uses: whether one that is there is asked, used, refused or given up, and what is said of it. It reads
 * no message and asks nobody: the shell says what happened to a node, and acts on the effects.
 *
 * - MB1 a node is used only after it has answered that it can be; one that was lost, only after it has answered again.
 * - MB2 a node that was said to be there is being asked, is used, or is refused with a reason, until it is gone.
 * - MB3 of one name one node is used at most, and only that one can be lost, once.
 */
import { type AwaitDecision, awaitNodes } from "./awaited-nodes.ts";

/** A node that ended and came back under its name has another incarnation. */
export type NodeId = { readonly name: string; readonly incarnation: number };

export type NodeFacts = {
  /** why the run must not use it while that lasts, such as another run that has it for itself */
  readonly taken?: string | undefined;
  readonly isDraining: boolean;
  /** why what it says of itself cannot be read */
  readonly unreadable?: string | undefined;
};

export type MembershipInput<N extends NodeId> =
  /** `isNew`: it has come just now, so what was held against it before is forgotten */
  | { readonly type: "there"; readonly node: N; readonly isNew?: boolean }
  /** what it says of itself has changed */
  | { readonly type: "changed"; readonly node: N; readonly hasWorkers: boolean }
  | { readonly type: "left"; readonly node: N; readonly reason: string }
  /** it does not do what it is told; `isThere`: though it is still announced */
  | { readonly type: "given-up"; readonly node: N; readonly reason: string; readonly isThere: boolean }
  /** it does not start what it is told to; `isTaken`: since another run was faster there */
  | { readonly type: "refuses"; readonly node: N; readonly why: string; readonly isTaken: boolean }
  | { readonly type: "look-again"; readonly node: N }
  /** to `ask` */
  | { readonly type: "answered"; readonly node: N; readonly answer: NodeAnswer; readonly isThere: boolean };

export type NodeAnswer =
  | { readonly type: "can-be-used" }
  | { readonly type: "cannot-be-used"; readonly why: string }
  /** it beats and did not answer in time */
  | { readonly type: "silent" }
  /** nobody serves its commands */
  | { readonly type: "absent" };

export type MembershipEffect<N extends NodeId> =
  /** Ask whether it can be used; answer with `answered`. */
  | { readonly type: "ask"; readonly node: N; readonly timeoutMs: number; readonly afterMs: number }
  | { readonly type: "used"; readonly node: N }
  /** What runs there has ended for this run. */
  | { readonly type: "lost"; readonly node: N; readonly reason: string }
  /** Say `look-again` then, if it is still there. */
  | { readonly type: "wake"; readonly node: N; readonly afterMs: number }
  | { readonly type: "notice"; readonly text: string };

/** A node may have much to hash and many processes to end: whoever asks again waits longer each time. */
const firstAnswerMs = 5000;
const longestAnswerMs = 60_000;
/** Until a node that nobody serves is asked again. */
const absentMs = 500;
/** Longer than a node takes to say of itself what has changed. */
const yieldMs = 1000;
/** Until one that cannot be used is asked again: somebody may bring its code up to date. Twice as long each time. */
const firstRefusalMs = 5000;
const longestRefusalMs = 60_000;
const wokenPart = 0.9;

export class NodeMembership<N extends NodeId> {
  readonly #factsOf: (node: N) => NodeFacts;
  readonly #used = new Map<string, N>();
  readonly #asked = new Map<string, { readonly node: N; readonly sinceMs: number; readonly timeoutMs: number }>();
  /** `isTaken`: until other runs are gone from there */
  readonly #refused = new Map<string, { readonly why: string; readonly isTaken: boolean }>();
  /** why nodes that are asked again could not be used before, and how long that was left at that */
  readonly #held = new Map<string, { readonly why: string; readonly forMs: number; readonly sinceMs: number }>();
  #revision = 0;
  /** since when a run has had as many as it wants */
  #enoughSinceMs: number | undefined;
  #out: MembershipEffect<N>[] = [];

  /** `factsOf` is pure: what the node has said of itself. */
  constructor(factsOf: (node: N) => NodeFacts) {
    this.#factsOf = factsOf;
  }

  handle(input: MembershipInput<N>, nowMs: number): readonly MembershipEffect<N>[] {
    this.#out = [];
    const { node } = input;
    switch (input.type) {
      case "there":
        if (input.isNew) this.#forget(node);
        this.#consider(node, nowMs);
        break;
      case "changed":
        this.#changed(node, input.hasWorkers, nowMs);
        break;
      case "left":
        this.#asked.delete(keyOf(node));
        this.#lose(node, input.reason);
        this.#forget(node);
        break;
      case "given-up":
        this.#lose(node, input.reason);
        if (input.isThere) this.#consider(node, nowMs);
        break;
      case "refuses":
        if (input.isTaken) this.#yield(node, input.why);
        else {
          this.#lose(node, input.why);
          this.#hold(node, input.why, nowMs);
        }
        break;
      case "look-again":
        this.#lookAgain(node, nowMs);
        break;
      case "answered":
        this.#answered(node, input.answer, input.isThere, nowMs);
        break;
    }
    return this.#out;
  }

  /** By name. */
  get used(): ReadonlyMap<string, N> {
    return this.#used;
  }

  uses(node: NodeId): boolean {
    return this.#used.get(node.name)?.incarnation === node.incarnation;
  }

  /** Grows whenever a node comes, goes, or begins to drain. */
  get revision(): number {
    return this.#revision;
  }

  /** Whether a run that wants so many nodes begins. Nodes that drain are there to be left. */
  awaits(minNodes: number, deadlineMs: number, nowMs: number): AwaitDecision {
    const asked = [...this.#asked.values()].map(({ node, sinceMs }) => ({ node: node.name, sinceMs }));
    const numUsable = [...this.#used.values()].filter((node) => !this.#factsOf(node).isDraining).length;
    this.#enoughSinceMs = numUsable < minNodes ? undefined : (this.#enoughSinceMs ?? nowMs);
    return awaitNodes({ minNodes, numUsable, enoughSinceMs: this.#enoughSinceMs, asked, deadlineMs }, nowMs);
  }

  /** Why a run does not begin on a node that is there. */
  whyNot(node: NodeId): string {
    const why = this.#held.get(keyOf(node))?.why ?? this.#refused.get(keyOf(node))?.why;
    if (why === undefined && this.#asked.has(keyOf(node))) return `'${node.name}' does not answer`;
    if (this.uses(node)) return `'${node.name}' drains`;
    return `'${node.name}' cannot be used: ${why ?? "it has just come"}`;
  }

  /** MB2. */
  #consider(node: N, nowMs: number): void {
    const key = keyOf(node);
    if (this.uses(node) || this.#asked.has(key) || this.#refused.has(key)) return;
    const { taken, unreadable } = this.#factsOf(node);
    if (unreadable !== undefined) this.#refuse(node, unreadable, false);
    else if (taken !== undefined) this.#refuse(node, taken, true);
    else {
      this.#asked.set(key, { node, sinceMs: nowMs, timeoutMs: firstAnswerMs });
      this.#out.push({ type: "ask", node, timeoutMs: firstAnswerMs, afterMs: 0 });
    }
  }

  #answered(node: N, answer: NodeAnswer, isThere: boolean, nowMs: number): void {
    const key = keyOf(node);
    const asked = this.#asked.get(key);
    if (asked === undefined) return; // MB1
    if (isThere && (answer.type === "silent" || answer.type === "absent")) {
      const timeoutMs = Math.min(2 * asked.timeoutMs, longestAnswerMs);
      this.#asked.set(key, { ...asked, timeoutMs });
      const isSilent = answer.type === "silent";
      if (isSilent) this.#notice(`node '${node.name}' beats, and does not answer: it is asked again`);
      this.#out.push({ type: "ask", node, timeoutMs, afterMs: isSilent ? 0 : absentMs });
      return;
    }
    this.#asked.delete(key);
    if (answer.type === "cannot-be-used") this.#hold(node, answer.why, nowMs);
    else if (answer.type === "can-be-used" && isThere) {
      const before = this.#used.get(node.name);
      if (before !== undefined) this.#lose(before, "another one has its name"); // MB3
      this.#used.set(node.name, node);
      this.#held.delete(key);
      this.#revision++;
      this.#out.push({ type: "used", node });
    }
  }

  #changed(node: N, hasWorkers: boolean, nowMs: number): void {
    const { taken, isDraining, unreadable } = this.#factsOf(node);
    if (unreadable !== undefined) return;
    const before = this.#used.get(node.name);
    if (before?.incarnation !== node.incarnation) {
      this.#lookAgain(node, nowMs);
      return;
    }
    if (taken !== undefined && !hasWorkers) {
      this.#yield(node, taken);
      return;
    }
    this.#used.set(node.name, node);
    if (this.#factsOf(before).isDraining || !isDraining) return;
    this.#revision++;
    this.#notice(`node '${node.name}' drains: its ranks move before the next step, where there is room`);
  }

  /** MB3. */
  #lose(node: N, reason: string): void {
    if (!this.uses(node)) return;
    this.#used.delete(node.name);
    this.#revision++;
    this.#notice(`node '${node.name}' is lost: ${reason}`);
    this.#out.push({ type: "lost", node, reason });
  }

  #refuse(node: N, why: string, isTaken: boolean): void {
    this.#refused.set(keyOf(node), { why, isTaken });
    this.#notice(`node '${node.name}' is not used: ${why}`);
  }

  /** For a while; what it says again is not news. */
  #hold(node: N, why: string, nowMs: number): void {
    const key = keyOf(node);
    const before = this.#held.get(key);
    const forMs = before === undefined ? firstRefusalMs : Math.min(2 * before.forMs, longestRefusalMs);
    this.#held.set(key, { why, forMs, sinceMs: nowMs });
    if (before?.why === why) this.#refused.set(key, { why, isTaken: false });
    else this.#refuse(node, why, false);
    this.#out.push({ type: "wake", node, afterMs: forMs });
  }

  #forget(node: N): void {
    this.#refused.delete(keyOf(node));
    this.#held.delete(keyOf(node));
  }

  /** To another run, until that one is gone from there. */
  #yield(node: N, why: string): void {
    this.#lose(node, why);
    this.#refuse(node, why, true);
    this.#out.push({ type: "wake", node, afterMs: yieldMs }); // what it says of itself may be older than what it answers
  }

  #lookAgain(node: N, nowMs: number): void {
    const { taken, unreadable } = this.#factsOf(node);
    const refused = this.#refused.get(keyOf(node));
    if (refused === undefined || taken !== undefined || unreadable !== undefined) return;
    const held = this.#held.get(keyOf(node));
    // Not by a wake of an earlier time, nor by what else it says of itself; timers may be a little early.
    if (!refused.isTaken && held !== undefined && nowMs < held.sinceMs + wokenPart * held.forMs) return;
    this.#refused.delete(keyOf(node));
    this.#consider(node, nowMs);
  }

  #notice(text: string): void {
    this.#out.push({ type: "notice", text });
  }
}

const keyOf = ({ name, incarnation }: NodeId): string => `${name}#${incarnation}`;

/** What was said while a network was cut has gone, and asking again does nothing twice: so a command is repeated. */
export type Silence = {
  /** of this command, from 0 on */
  readonly attempt: number;
  readonly mostAttempts: number;
  /** false while the control plane is away, and where the node is this process: then silence says nothing of the node */
  readonly isTelling: boolean;
  /** the run still uses the node that was told */
  readonly isUsed: boolean;
};

/** `hangs`: the node beats, and has not answered in all of that time. */
export function afterSilence({
  attempt,
  mostAttempts,
  isTelling,
  isUsed,
}: Silence): { readonly type: "again"; readonly attempt: number } | { readonly type: "hangs" | "gone" } {
  if (!isUsed) return { type: "gone" };
  if (!isTelling) return { type: "again", attempt };
  return attempt + 1 < mostAttempts ? { type: "again", attempt: attempt + 1 } : { type: "hangs" };
}
