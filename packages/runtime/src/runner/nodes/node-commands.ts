/**
 * What a runner tells the agents of its nodes: again and again where one does not answer, with a look at whether it is there where
 * one is slow, or something of its node has ended without a word.
 *
 * Owner of: which nodes are in doubt, and of which it was said that they do not answer.
 */
import { setTimeout as delay } from "node:timers/promises";
import {
  ask,
  type Commands,
  type ControlPlane,
  type EndReply,
  type Member,
  type ReplyOf,
  type RequestOf,
  type SpawnCommand,
  TreadleError,
} from "@treadle/contracts";
import { afterSilence } from "@treadle/core";
import { inquire } from "./inquire.ts";

type NodeCommandsPorts = {
  readonly plane: ControlPlane;
  /** the only node is this process, which may be slow and does not go away */
  readonly isLocal: boolean;
  /** whether the run still wants anything of it */
  isUsed(member: Member): boolean;
  /** It is used no more; without a reason, since it beats and does not answer. */
  gaveUp(member: Member, reason?: string): void;
  /** What was to be ended is not there. */
  missing(worker: string, incarnation: number): void;
  /** Which nodes are in doubt has changed. */
  doubted(): void;
  notice(text: string): void;
};

/**
 * What was said while a network was cut has gone, and asking again does nothing twice: so it is asked again soon, and a node
 * that says that it is there and has not done it in all of that time hangs as well.
 */
const commandTimeoutMs = 2000;
/** Whether a node is there at all is asked apart, with a shorter patience: a start may take long, and a word does not. */
const doubtMs = 1000;
const mostTells = 15;
/** Until an agent that nobody reaches is told again. */
const nobodyMs = 500;
const mostSpawns = 20;

export class NodeCommands {
  readonly #ports: NodeCommandsPorts;
  readonly #doubted = new Set<string>();
  readonly #silent = new WeakSet<Member>();

  constructor(ports: NodeCommandsPorts) {
    this.#ports = ports;
  }

  /** Whether it is just being found out that this node is there. */
  doubts(node: string): boolean {
    return this.#doubted.has(node);
  }

  /** Something on it has ended without a word, or is waited for: its agent may have ended, and with it all that runs there, or hang. */
  async doubt(member: Member): Promise<void> {
    const { plane, isLocal, isUsed, gaveUp, doubted } = this.#ports;
    if (isLocal || this.#doubted.has(member.name)) return;
    this.#doubted.add(member.name);
    doubted();
    const verdict = await inquire(plane, member, () => isUsed(member));
    if (verdict === "gone") gaveUp(member, "its agent has ended");
    else if (verdict === "hangs") gaveUp(member);
    this.#doubted.delete(member.name);
    doubted();
  }

  /** Starts a process; rejects with `node.lost` where the node does not answer, and with what it refuses for. */
  async spawn(member: Member, command: SpawnCommand): Promise<ReplyOf<Commands["node"], "spawn">> {
    for (let attempt = 0; ; ) {
      try {
        return await this.#ask(member, "spawn", command);
      } catch (error) {
        // It may have been done, or not: doing it again does it once.
        if (!(error instanceof TreadleError) || error.code !== "call.timeout") throw error;
        const next = this.#afterSilence(member, attempt, mostSpawns);
        if (next.type !== "again") throw new TreadleError("node.lost", error.message, { cause: error });
        attempt = next.attempt;
      }
    }
  }

  /** Until it has answered, or is given up. */
  tell<V extends "end" | "stop">(member: Member, verb: V, command: RequestOf<Commands["node"], V>): void {
    const { isUsed, gaveUp, missing } = this.#ports;
    const tell = async (attempt: number): Promise<void> => {
      try {
        const reply = (await this.#ask(member, verb, command)) as EndReply;
        if (!reply.isHere) missing(command.worker, command.incarnation);
      } catch (error) {
        if (!isUsed(member)) return;
        const code = error instanceof TreadleError ? error.code : undefined;
        if (code === "node.lost") {
          void this.doubt(member); // which finds out whether it has gone, or is only looking for another server
          await delay(nobodyMs, undefined, { ref: false });
          if (isUsed(member)) void tell(attempt);
          return;
        }
        if (code !== "call.timeout")
          return gaveUp(member, `it does not do what it is told: ${(error as Error).message}`);
        const next = this.#afterSilence(member, attempt, mostTells);
        if (next.type === "again") void tell(next.attempt);
        else if (next.type === "hangs") gaveUp(member);
      }
    };
    void tell(0);
  }

  /** One that is slow to be answered casts doubt on its node. */
  async #ask<V extends "spawn" | "end" | "stop">(
    member: Member,
    verb: V,
    command: RequestOf<Commands["node"], V>,
  ): Promise<ReplyOf<Commands["node"], V>> {
    const timer = setTimeout(() => void this.doubt(member), doubtMs);
    try {
      const reply = await ask(this.#ports.plane, "node", member, verb, command, { timeoutMs: commandTimeoutMs });
      this.#silent.delete(member);
      return reply;
    } finally {
      clearTimeout(timer);
    }
  }

  #afterSilence(member: Member, attempt: number, mostAttempts: number): ReturnType<typeof afterSilence> {
    const { plane, isLocal, isUsed, notice } = this.#ports;
    const isTelling = plane.isConnected && !isLocal; // this process itself is only slow
    const next = afterSilence({ attempt, mostAttempts, isTelling, isUsed: isUsed(member) });
    if (next.type === "again" && attempt === 0 && next.attempt > 0 && !this.#silent.has(member)) {
      this.#silent.add(member);
      notice(`node '${member.name}' beats, and has not answered: it is asked again`);
    }
    return next;
  }
}
