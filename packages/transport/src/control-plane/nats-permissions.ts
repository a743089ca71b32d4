/**
 * The subjects that the holder of a key needs of a NATS server, and no others. Pure. What is missing here shows as
 * a 'Permissions Violation' in tests, which run against servers that are set up so.
 *
 * NP1 a node's key reads no command but its own node's, and commands no node.
 * NP2 a key with a name announces that node alone, and answers for it alone.
 * NP3 a runner's key reads no command to a node, and announces none.
 * NP4 answers arrive below the asker's own inbox, and members write no other part of it, whatever they are asked.
 * NP5 nothing that a key sends itself lets it say more.
 * NP6 a node's key asks nothing of JetStream, whose answers NATS sends wherever the asker wants them, as any request.
 *
 * A runner's key asks JetStream, and so reads and changes everything of the account: it is as good as the account's owner.
 */
import { answersOf, inboxOf } from "./nkey-seed.ts";
import type { TrustedKey } from "./trust-file.ts";

export type NatsPermissions = { readonly publish: readonly string[]; readonly subscribe: readonly string[] };

export function permissionsOf(trusted: TrustedKey, prefix: string): NatsPermissions {
  const { key, role, name = "*" } = trusted;
  const both = {
    publish: [
      `${answersOf(inboxOf("*"))}.*`,
      `${prefix}.probe`,
      `${prefix}.ask.*.*`,
      `${prefix}.command.run.*.*`,
      ...[`${prefix}.relay.*.open.*`, `${prefix}.relay.*.tunnel.*.*`],
    ],
    subscribe: [
      `${inboxOf(key)}.>`,
      ...[`${prefix}.beat.*.*`, `${prefix}.entry.*.*`, `${prefix}.probe`],
      `${prefix}.relay.*.tunnel.*.*`,
    ],
  };
  if (role === "node") {
    return {
      publish: [
        ...both.publish,
        ...[`${prefix}.beat.node.${name}`, `${prefix}.entry.node.${name}`],
        ...[`${prefix}.topic.heartbeats.*`, `${prefix}.topic.log.*`],
      ],
      subscribe: [
        ...both.subscribe,
        ...[`${prefix}.ask.node.${name}`, `${prefix}.command.node.${name}.*`, `${prefix}.relay.*.open.${name}`],
      ],
    };
  }
  const records = `KV_${prefix}-records`;
  const journals = `KV_${prefix}-journals`;
  const runs = `OBJ_${prefix}-runs`;
  return {
    publish: [
      ...both.publish,
      ...[`${prefix}.beat.run.*`, `${prefix}.entry.run.*`],
      ...[`${prefix}.beat.pool.*`, `${prefix}.entry.pool.*`],
      ...[`${prefix}.command.node.*.*`, `${prefix}.command.pool.*.*`],
      ...[`$KV.${prefix}-records.*`, `$KV.${prefix}-journals.>`, `$O.${prefix}-runs.>`],
      "$JS.API.INFO",
      ...[records, journals, runs].flatMap(uses),
      `$JS.API.STREAM.PURGE.${journals}`,
      `$JS.API.STREAM.PURGE.${runs}`,
    ],
    subscribe: [
      ...both.subscribe,
      ...[`${prefix}.ask.run.*`, `${prefix}.command.run.*.*`, `${prefix}.topic.>`, `${prefix}.relay.*.open.runner`],
      ...[`${prefix}.ask.pool.*`, `${prefix}.command.pool.*.*`],
    ],
  };
}

/** Reads also by consumers, which are the reader's own. */
const uses = (stream: string): string[] => [
  `$JS.API.STREAM.INFO.${stream}`,
  `$JS.API.STREAM.CREATE.${stream}`,
  `$JS.API.DIRECT.GET.${stream}`,
  `$JS.API.DIRECT.GET.${stream}.>`,
  `$JS.API.STREAM.MSG.GET.${stream}`,
  `$JS.API.CONSUMER.CREATE.${stream}.>`,
  `$JS.API.CONSUMER.MSG.NEXT.${stream}.*`,
  `$JS.API.CONSUMER.INFO.${stream}.*`,
  `$JS.API.CONSUMER.DELETE.${stream}.*`,
  `$JS.ACK.${stream}.>`,
  "$JS.FC.>",
];
