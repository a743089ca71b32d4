/**
 * The subjects that the holder of a key needs of a NATS server, and no others. Pure. What is missing here shows as
 * a 'Permissions Violation' in tests, which run against servers that are set up so.
 *
 * NP1 a node's key reads no command but its own node's, and commands no node.
 * NP2 a key with a name announces that node alone, and answers for it alone.
 * NP3 a runner's key reads no command to a node, and announces none.
 * NP4 answers arrive below the asker's own inbox, and members write no other part of it.
 * NP5 nothing that a key sends itself lets it say more.
 *
 * NATS does not check where its own answers go: who may ask JetStream anything can have the answer, and with DIRECT.GET its
 * own words, sent as any request of JetStream, and so read and change all streams. README says so.
 */
import { answersOf, inboxOf } from "./nkey-seed.ts";
import type { TrustedKey } from "./trust-file.ts";

export type NatsPermissions = { readonly publish: readonly string[]; readonly subscribe: readonly string[] };

export function permissionsOf(trusted: TrustedKey, prefix: string): NatsPermissions {
  const { key, role, name = "*" } = trusted;
  const members = `KV_${prefix}-members`;
  const records = `KV_${prefix}-records`;
  const journals = `KV_${prefix}-journals`;
  const runs = `OBJ_${prefix}-runs`;
  const both = {
    publish: [
      `${answersOf(inboxOf("*"))}.*`,
      `${prefix}.probe`,
      `${prefix}.command.run.*.*`,
      ...[`${prefix}.relay.*.open.*`, `${prefix}.relay.*.tunnel.*.*`],
      "$JS.API.INFO",
      ...[members, records].flatMap(opens),
      ...reads(members),
    ],
    subscribe: [`${inboxOf(key)}.>`, `${prefix}.beat.*.*`, `${prefix}.probe`, `${prefix}.relay.*.tunnel.*.*`],
  };
  if (role === "node") {
    return {
      publish: [
        ...both.publish,
        `${prefix}.beat.node.${name}`,
        ...[`${prefix}.topic.heartbeats.*`, `${prefix}.topic.log.*`],
        `$KV.${prefix}-members.node.${name}`,
      ],
      subscribe: [...both.subscribe, `${prefix}.command.node.${name}.*`, `${prefix}.relay.*.open.${name}`],
    };
  }
  return {
    publish: [
      ...both.publish,
      `${prefix}.beat.run.*`,
      `${prefix}.command.node.*.*`,
      `$KV.${prefix}-members.run.*`,
      ...[`$KV.${prefix}-records.*`, `$KV.${prefix}-journals.>`, `$O.${prefix}-runs.>`],
      ...[journals, runs].flatMap(opens),
      ...[records, journals, runs].flatMap(reads),
      `$JS.API.STREAM.PURGE.${journals}`,
      `$JS.API.STREAM.PURGE.${runs}`,
    ],
    subscribe: [...both.subscribe, `${prefix}.command.run.*.*`, `${prefix}.topic.>`, `${prefix}.relay.*.open.runner`],
  };
}

const opens = (stream: string): string[] => [`$JS.API.STREAM.INFO.${stream}`, `$JS.API.STREAM.CREATE.${stream}`];

/** Also by consumers, which are the reader's own. */
const reads = (stream: string): string[] => [
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
