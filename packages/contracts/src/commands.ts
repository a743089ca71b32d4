/** Commands and events of the control plane, by their schemas: the only way to give or answer one. */
import { TreadleError } from "./errors.ts";
import type { Commander, CommandHandler, ControlPlane, Member, MemberKind } from "./ports.ts";
import {
  type AnswerOf,
  type AskVerb,
  acknowledged,
  type BodyOf,
  type Commands,
  commands,
  type ReplyOf,
  type RequestOf,
  type Topics,
  topics,
  type Verb,
} from "./protocol.ts";
import { readMessage } from "./read-message.ts";

/** One handler for each command that a member of this kind answers. */
export type CommandHandlers<K extends MemberKind> = {
  readonly [V in AskVerb<Commands[K]>]: (
    body: BodyOf<Commands[K], V>,
    sender?: Commander,
  ) => Answered<AnswerOf<Commands[K], V>>;
};
/** JSON has no undefined: a command without an answer is answered with null, whatever its handler returns. */
type Answered<T> = [T] extends [null] ? unknown : T | Promise<T>;

/** Rejects as `ControlPlane.command` does, and with `link.protocol` on an answer that does not fit. */
export async function ask<K extends MemberKind, V extends AskVerb<Commands[K]>>(
  plane: ControlPlane,
  kind: K,
  member: Member,
  verb: V,
  body: RequestOf<Commands[K], V>,
  options: { readonly timeoutMs: number },
): Promise<ReplyOf<Commands[K], V>> {
  const verbs: Readonly<Record<string, Verb>> = commands[kind];
  const { reply } = verbs[verb] as Required<Verb>;
  return readMessage(reply, await plane.command(member, verb, body, options)) as ReplyOf<Commands[K], V>;
}

/** The handler that `ControlPlane.announce` takes. Bodies that do not fit are refused with `link.protocol`. */
export function answering<K extends MemberKind>(kind: K, handlers: CommandHandlers<K>): CommandHandler {
  const known: Readonly<Record<string, Verb>> = commands[kind];
  return async (verb, body, sender) => {
    if (!Object.hasOwn(known, verb)) {
      throw new TreadleError(
        "call.unknown-method",
        `command '${verb.slice(0, 200)}' is not known to a ${kind}; it knows ${Object.keys(known).join(", ")}`,
      );
    }
    const { request, reply } = known[verb] as Verb;
    const handler = handlers[verb as AskVerb<Commands[K]>] as (body: unknown, sender?: Commander) => unknown;
    const answer = await handler(readMessage(request, body), sender);
    return reply === acknowledged ? null : answer;
  };
}

export function publishTo<T extends keyof Topics>(
  plane: ControlPlane,
  topic: T,
  run: string,
  event: RequestOf<Topics, T>,
): void {
  plane.publish(`${topic}.${run}`, event);
}

/** What does not parse was sent by no process of ours, and is passed over. The returned function ends it. */
export function listenTo<T extends keyof Topics>(
  plane: ControlPlane,
  topic: T,
  run: string,
  listener: (event: BodyOf<Topics, T>) => void,
): () => void {
  return plane.subscribe(`${topic}.${run}`, (body) => {
    const event = topics[topic].request.safeParse(body);
    if (event.success) listener(event.data as BodyOf<Topics, T>);
  });
}
