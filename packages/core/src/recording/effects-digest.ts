/** A few bits that tell the effects of one input from others: equal effects have equal digests, here and elsewhere. */
import { TreadleError } from "@treadle/contracts";
import type { RunnerEffect } from "../runner/runner-messages.ts";

/** FNV-1a over what the effects say, without what items hold. Different effects agree by chance once in 2^32. */
export function digestOf(effects: readonly RunnerEffect[]): number {
  let hash = 0x811c9dc5;
  for (const effect of effects) hash = add(hash, textOf(effect));
  return hash >>> 0;
}

/** Of an input that was refused at once. */
export const digestOfRefusal = (error: unknown): number => add(0x811c9dc5, describe(error)) >>> 0;

/**
 * The next tie of a recording's lines. One character that differs always leads to another tie, and so to other ones of all
 * lines that follow, since each step of the hash is one to one. It finds mistakes and damage; a forger can tie anew.
 */
export const tied = (before: number, text: string): number => add(before, text) >>> 0;

function add(hash: number, text: string): number {
  let next = hash;
  for (let i = 0; i < text.length; i++) next = Math.imul(next ^ text.charCodeAt(i), 0x01000193);
  return next;
}

function textOf(effect: RunnerEffect): string {
  switch (effect.type) {
    case "answer": {
      const { request, answer, servedMs = "" } = effect;
      const what =
        answer.type === "batch"
          ? `${answer.worker} ${answer.items.map(({ delivery }) => delivery).join()}`
          : answer.type === "token"
            ? answer.token
            : "";
      return `answer ${request} ${answer.type} ${what} ${servedMs}`;
    }
    case "reject":
      return `reject ${effect.request} ${describe(effect.error)}`;
    case "settle-failed":
      return `settle-failed ${effect.call} ${describe(effect.error)}`;
    case "failed":
      return `failed ${describe(effect.error)}`;
    case "died":
      return `died ${effect.worker} ${effect.incarnation} ${effect.code} ${effect.signal} ${describe(effect.cause)}`;
    default:
      return JSON.stringify(effect);
  }
}

const describe = (error: unknown): string =>
  error instanceof TreadleError ? `${error.code}: ${error.message}` : String(error);
