/**
 * Everything that reads what another process, an older run or a person wrote, one row each: what a sound input looks
 * like, and the codes of the errors with which it may refuse another. A row without codes never throws. The schemas of
 * messages are found by themselves.
 */
import { createHash } from "node:crypto";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import type { Socket } from "node:net";
import { tmpdir } from "node:os";

import { dirname, join } from "node:path";
import { PassThrough } from "node:stream";
import * as contracts from "@treadle/contracts";
import { type ErrorCode, errorCatalogue, fromErrorRecord, readMessage, SpanBatch } from "@treadle/contracts";
import { LogTail, parseLogLine, readMetrics, readTrace } from "@treadle/observe";
import { parsePlacement } from "@treadle/planner";
import { readConfigFile, readProfile } from "@treadle/runtime/runner";
import { Decoder, decodeItem, decodeItems, Encoder, encodeItem, ItemEncoder, parseAddress } from "@treadle/transport";
import fc from "fast-check";
import { z } from "zod";
import { parseCoreTicks } from "../../packages/actions/src/elasticity/contention.ts";
import { parseTimes } from "../../packages/actions/src/elasticity/profile-elasticity.ts";
import * as actionMessages from "../../packages/actions/src/grpc/messages.ts";
import { parseRetryAfter } from "../../packages/actions/src/managers/quota.ts";
import { readRun } from "../../packages/dashboard/src/static/report.ts";
import { encodeCheckpoint, readCheckpoint } from "../../packages/engines/src/checkpoint.ts";
import { Optimiser } from "../../packages/engines/src/optimiser.ts";
import { Parameters } from "../../packages/engines/src/parameters.ts";
import { wholeOf } from "../../packages/engines/src/testing/whole-of.ts";
import {
  type ArgumentPorts,
  decodeArguments,
  holdReferences,
} from "../../packages/runtime/src/author/group/call-arguments.ts";
import { checkCode, packagesRoot } from "../../packages/runtime/src/author/module-loader.ts";
import { manifestText, openState } from "../../packages/runtime/src/author/state/saved-state.ts";
import { parseFailure, parseHeartbeat } from "../../packages/runtime/src/author/worker-lines.ts";
import { Checkpoints } from "../../packages/runtime/src/runner/run/checkpoints.ts";
import { Journal, readRecords } from "../../packages/runtime/src/runner/run/journal.ts";
import {
  messageHeadBytes,
  readMessageHead,
  writeMessageHead,
} from "../../packages/transport/src/codec/message-head.ts";
import { readAnswer } from "../../packages/transport/src/control-plane/answers.ts";
import { readJson } from "../../packages/transport/src/control-plane/bounded-json.ts";
import { MembershipState } from "../../packages/transport/src/control-plane/membership-state.ts";
import { readEntry } from "../../packages/transport/src/control-plane/nats-announcement.ts";
import { Trust } from "../../packages/transport/src/control-plane/trust.ts";
import { makeKey, parseTrust, readKey } from "../../packages/transport/src/control-plane/trust-file.ts";
import { FrameReader, frameKind, headBytes, writeHead } from "../../packages/transport/src/link/frame.ts";
import { Handshake } from "../../packages/transport/src/link/handshake.ts";
import { Openings, proveOpening } from "../../packages/transport/src/relay/openings.ts";
import { readOpening, readRelayLine, relayTarget } from "../../packages/transport/src/relay/relay-target.ts";
import { Tunnel, windowBytes } from "../../packages/transport/src/relay/tunnel.ts";
import { TunnelSeal } from "../../packages/transport/src/relay/tunnel-seal.ts";
import { arbitraryOf } from "./arbitrary-of.ts";

export type Row<Input> = {
  readonly name: string;
  readonly sound: fc.Arbitrary<Input>;
  readonly decode: (input: Input) => unknown;
  readonly refuses: readonly ErrorCode[];
  /** on top of what all of its kind are tried with */
  readonly hostile?: readonly [string, () => Input][];
  /** written by the person who starts the run: it may be wrong, but nobody gains from making it hostile */
  readonly isOwn?: true;
};

const anyJson = fc.jsonValue({ maxDepth: 4 });
/** JSON that may leave a process: encoders refuse a key that a receiver would take for an object's prototype */
const sendable = anyJson.filter((value) => !JSON.stringify(value).includes('"__proto__"'));
const jsonOf = (schema: z.ZodType): fc.Arbitrary<string> =>
  arbitraryOf(schema).map((value) => JSON.stringify(value) ?? "null");
const withArrays = fc.oneof(sendable, fc.record({ a: fc.float32Array(), b: fc.uint8Array({ minLength: 4000 }) }));

// What reads a file is given one.
const folder = mkdtempSync(join(tmpdir(), "treadle-fuzz-"));
process.once("exit", () => rmSync(folder, { recursive: true, force: true }));
function fileOf(content: Uint8Array | string, name = "file"): string {
  const path = join(folder, name.replaceAll(/\W/g, "-"), name);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, content, { mode: 0o600 }); // as keys are
  return path;
}

const identity = { name: "a", runId: "r", memory: "", segmentPrefix: "" };
const nonce = "0".repeat(64);
const runToken = "token token token";
const shake = (role: "dialler" | "acceptor") => new Handshake(role, identity, runToken);
const bytesOf = (step: unknown): Uint8Array => Buffer.from(JSON.stringify(step));
const soundHello = shake("dialler").hello();
const steps = fc.constantFrom<object>(
  soundHello,
  { ...soundHello, proof: nonce },
  { ...soundHello, version: 1 },
  { ...soundHello, step: "answer" },
  { step: "proof", proof: nonce },
  { step: "welcome" },
  { step: "refusal", reason: "no" },
);

const frames = fc
  .array(fc.tuple(fc.constantFrom(...Object.values(frameKind)), fc.nat(3), fc.uint8Array({ minLength: 1 })))
  .map((list) =>
    Buffer.concat(
      list.flatMap(([kind, flags, body]) => {
        const head = Buffer.alloc(headBytes);
        writeHead(head, body.length, kind, flags);
        return [head, body];
      }),
    ),
  );

const subject = "treadle.command.node.a.1";
const runnerKey = makeKey();
/** Two processes with one runner's key, which both trust, and what one asks of the other's command. */
const newTrust = () =>
  new Trust([{ role: "runner", key: runnerKey.publicKey }], readKey(fileOf(runnerKey.seed, "runner.nk")), {
    file: "trust",
    prefix: "treadle",
  });
const asker = newTrust();
const member = newTrust();
const memberKey = member.prove("run.r", { incarnation: 1, version: 0, body: {} }).seal;
const ask = () => asker.ask(subject, '{"method":"check","body":{}}', memberKey);
/** One that is asked again after every answer, so that its answers are to be decoded. */
const asked = ask();

/** What a tunnel does to a socket, and nothing else. */
function tunnelEnd(): { readonly tunnel: Tunnel; close(): void } {
  const socket = new PassThrough();
  const tunnel = new Tunnel(socket as unknown as Socket, { publish: () => {}, maxBytes: 2 ** 20, ended: () => {} });
  socket.resume();
  return { tunnel, close: () => tunnel.close() };
}
const relayToken = "a token that only this run has";
const tunnelId = "0b6a3b0e-3f0e-4b5a-9d0e-0a0a0a0a0a0a";
const tunnelMessage = (kind: number, at: number, body: Uint8Array): Uint8Array => {
  const message = Buffer.alloc(9 + body.length);
  message[0] = kind;
  message.writeBigUInt64BE(BigInt(at), 1);
  message.set(body, 9);
  return message;
};

const shape = { width: [2, 3] };
const model = (): [Parameters, Optimiser] => {
  const parameters = new Parameters([{ name: "w", shape: shape.width }], () => new Float32Array(6).fill(0.5));
  return [parameters, new Optimiser(parameters)];
};

const schema = {
  module: new URL("../../packages/runtime/test/support/schemas.ts", import.meta.url).href,
  exportName: "Anything",
};
const reference = fc.oneof(
  arbitraryOf(contracts.ChannelRef).map((ref) => ({ ...(ref as object), schema })),
  arbitraryOf(contracts.GroupRef),
);
const argumentPorts: ArgumentPorts = {
  moduleHere: async (module) => {
    await checkCode(module, [packagesRoot]);
    return module;
  },
  home: { put: async () => {}, take: async () => null },
  waiting: () => ({ awaited() {}, moved() {}, [Symbol.dispose]() {} }),
  callWorker: async () => undefined,
};

const checkpoint = await wholeOf(encodeCheckpoint(...model(), 3));

export const byteRows: readonly Row<Uint8Array>[] = [
  {
    name: "codec",
    sound: withArrays.map((value) => new Encoder().encode(value).header),
    decode: (bytes) => new Decoder().decode(bytes, 0, bytes.length, [new Uint8Array(8)]),
    refuses: ["link.protocol"],
  },
  { name: "item", sound: withArrays.map(encodeItem), decode: decodeItem, refuses: ["link.protocol"] },
  {
    name: "frames and chunks",
    sound: frames,
    decode: (bytes) => {
      const area = new Uint8Array(2 ** 20);
      const ignore = () => {};
      const handler = { frame: ignore, chunkStart: ignore, chunkBytes: ignore, chunkTarget: () => area };
      const reader = new FrameReader(handler, 1000);
      for (let at = 0; at < bytes.length; at += 4099) reader.push(bytes.subarray(at, at + 4099));
    },
    refuses: ["link.protocol"],
  },
  {
    name: "message head",
    sound: fc.array(fc.uint8Array({ maxLength: 70 }), { maxLength: 5 }).map((buffers) => {
      const bytes = Buffer.alloc(messageHeadBytes(buffers) + 4);
      writeMessageHead(bytes, 0, buffers, 4, 0);
      return bytes;
    }),
    decode: (bytes) => readMessageHead(bytes, 0, bytes.length, 1000),
    refuses: ["link.protocol"],
  },
  ...(
    [
      ["dialler", undefined],
      ["acceptor", undefined],
      ["acceptor", soundHello], // as far as somebody gets with what it has heard
    ] as const
  ).map(([role, before]) => ({
    name: `handshake as ${role}${before ? ", after a hello" : ""}`,
    sound: steps.map(bytesOf),
    decode: (bytes: Uint8Array) => {
      const handshake = shake(role);
      if (before && handshake.receive(bytesOf(before)).next !== "wait") throw new Error("the hello is not sound");
      for (let i = 0; i < 2; i++) {
        const { next } = handshake.receive(bytes);
        if (next === "done") throw new Error("garbage was admitted");
      }
    },
    refuses: [],
  })),
  {
    name: "message of a tunnel between relays",
    sound: fc
      .tuple(fc.nat(5), fc.constantFrom(0, 1, 3), fc.uint8Array({ maxLength: 40 }))
      .map(([kind, at, body]) => tunnelMessage(kind, at, body)),
    decode: (bytes) => {
      const end = tunnelEnd();
      try {
        for (let i = 0; i < 3; i++) end.tunnel.receive(bytes);
      } finally {
        end.close();
      }
    },
    refuses: [],
    hostile: [
      ["more than a window", () => tunnelMessage(0, 0, new Uint8Array(3 * windowBytes))],
      ["the credit of all bytes that there are", () => tunnelMessage(1, Number.MAX_SAFE_INTEGER, new Uint8Array())],
    ],
  },
  {
    name: "sealed message of a tunnel",
    sound: fc
      .uint8Array({ maxLength: 100 })
      .map((body) => Uint8Array.from(new TunnelSeal(relayToken, tunnelId, "b").seal(body))),
    decode: (bytes) => {
      const seal = new TunnelSeal(relayToken, tunnelId, "a");
      for (let i = 0; i < 2; i++) seal.open(bytes);
    },
    refuses: [],
  },
  {
    name: "checkpoint of an engine",
    sound: fc.constant(checkpoint).map((bytes) => Uint8Array.from(bytes)),
    decode: (bytes) => readCheckpoint([bytes], ...model()),
    refuses: ["checkpoint.corrupt"],
  },
  {
    name: "manifest of a state",
    // without files: of those the manifest says more than a decoder sees
    sound: fc
      .array(fc.constant<never[]>([]), { minLength: 1, maxLength: 5 })
      .map((ranks) => Buffer.from(manifestText({ format: 1, component: "actor", ranks }))),
    decode: (bytes) => openState(join(fileOf(bytes, join("state", "manifest.json")), "..")),
    refuses: ["checkpoint.corrupt"],
  },
];

const journalLine = (record: unknown): string => {
  const body = JSON.stringify(record);
  return `${createHash("sha256").update(body).digest("hex").slice(0, 16)} ${body}\n`;
};

const runFiles = ["summary.json", "plan.json", "config.json", "metrics.jsonl", "trace.jsonl"];

export const textRows: readonly Row<string>[] = [
  {
    name: "answer of the control plane",
    sound: anyJson.map((value) => JSON.stringify({ value })),
    decode: readAnswer,
    refuses: Object.keys(errorCatalogue) as ErrorCode[],
  },
  {
    name: "sealed command",
    sound: fc.constant(undefined).map(() => ask().text),
    decode: (text) => member.receive(subject, text, (opened) => opened),
    refuses: ["control-plane.untrusted"],
    hostile: [
      ["a box of a mebibyte", () => JSON.stringify({ ...JSON.parse(ask().text), box: "A".repeat(2 ** 20) })],
      ["a number beyond all", () => JSON.stringify({ ...JSON.parse(ask().text), sequence: 1e308 })],
    ],
  },
  {
    name: "sealed answer",
    sound: fc
      .constant(undefined)
      .map(() => member.receive(subject, ask().text, (opened) => opened).seal('{"value":1}')),
    decode: (text) => asked.open(text),
    refuses: ["control-plane.untrusted"],
  },
  {
    name: "proof of an entry",
    sound: anyJson.map((body) =>
      JSON.stringify({
        incarnation: 1,
        version: 0,
        body,
        proof: member.prove("run.r", { incarnation: 1, version: 0, body }),
      }),
    ),
    decode: (text) => {
      const entry = readEntry(text);
      if (entry) asker.sealKeyOf("run.r", entry);
    },
    refuses: ["control-plane.untrusted"],
  },
  {
    name: "trust file",
    sound: fc
      .array(fc.tuple(fc.constantFrom("runner", "node"), fc.constantFrom("", " a", " # mine")))
      .map((lines) => lines.map(([role, end]) => `${role} ${runnerKey.publicKey}${end}\n`).join("")),
    decode: (text) => parseTrust(text, "trust"),
    refuses: ["config.invalid"],
  },
  {
    name: "key file",
    sound: fc.constant(`${runnerKey.seed}\n`),
    decode: (text) => readKey(fileOf(text, "own.nk")),
    refuses: ["config.invalid"],
  },
  {
    name: "opening of a relay",
    sound: fc.tuple(fc.uuid(), fc.stringMatching(/^[a-z][a-z.-]{0,7}$/)).map(([tunnel, target]) => {
      const proof = proveOpening(relayToken, { subject: "treadle.relay.r", from: "b", to: "a", tunnel, target });
      return JSON.stringify({ tunnel, target, from: "b", proof });
    }),
    decode: (text) => {
      const opening = readOpening(text);
      if (opening)
        new Openings(
          { token: relayToken, subject: "treadle.relay.r", member: "a" },
          { maxTotal: 1, maxFrom: 1, maxSeen: 1 },
        ).admit(opening);
      const targets = { ports: { depot: { host: "127.0.0.1", port: 1 } }, path: "/run/treadle/relay" };
      const found = opening && relayTarget(opening.target, targets);
      if (found && "path" in found && dirname(found.path) !== "/run/treadle") throw new Error(`it left: ${found.path}`);
    },
    refuses: [],
  },
  {
    name: "line to a relay",
    sound: fc.constantFrom("a depot", "runner runner", "b rollout.v2-0-1"),
    decode: readRelayLine,
    refuses: [],
  },
  {
    name: "entry of the control plane",
    sound: anyJson.map((body) => JSON.stringify({ incarnation: 1, version: 0, body })),
    decode: readEntry,
    refuses: [],
  },
  {
    name: "entries of members",
    sound: anyJson.map((body) => JSON.stringify(body)),
    decode: (text) => {
      const state = new MembershipState(1000, 0);
      const body = readJson(z.unknown(), text);
      if (body === undefined) return;
      for (const incarnation of [1, 1, 2, 2]) {
        state.entry({ kind: "node", name: "a", incarnation, body }, 0, 0);
        state.beat("node", "a", incarnation, 0);
      }
    },
    refuses: [],
  },
  {
    name: "failure line of a worker",
    sound: jsonOf(contracts.ErrorRecordShape).map((json) => `#treadle-failure ${json}`),
    decode: (line) => {
      const record = parseFailure(`#treadle-failure ${line}`) ?? parseFailure(line);
      return record && fromErrorRecord(record);
    },
    refuses: [],
  },
  {
    name: "heartbeat line of a worker",
    sound: fc.constant('{"busyMs":1,"rssBytes":2}'),
    decode: parseHeartbeat,
    refuses: [],
  },
  { name: "log line", sound: fc.constant('{"level":30,"msg":"m"}'), decode: (line) => parseLogLine(line), refuses: [] },
  {
    name: "log tail",
    sound: fc.string(),
    decode: (text) => {
      const tail = new LogTail();
      tail.write(text);
      return tail.lines();
    },
    refuses: [],
  },
  {
    name: "journal",
    sound: fc
      .array(fc.constantFrom({ type: "started", runId: "r", workflow: "w", at: "t" }, { type: "finished", at: "t" }))
      .map((records) => records.map(journalLine).join("")),
    decode: (text) => readRecords(text, "journal"),
    refuses: ["journal.corrupt"],
  },
  {
    name: "journal file",
    sound: fc.constant(journalLine({ type: "finished", at: "t" })),
    decode: async (text) => (await Journal.open(fileOf(text, "journal.jsonl"))).close(),
    refuses: ["journal.corrupt"],
  },
  {
    name: "journal line with a checksum",
    sound: anyJson.map((value) => JSON.stringify(value)),
    decode: (text) => readRecords(journalLine(text), "journal"),
    refuses: ["journal.corrupt"],
  },
  {
    name: "metrics",
    sound: fc.array(fc.nat(9)).map((list) => list.map((step) => `{"step":${step},"loss":"NaN"}\n`).join("")),
    decode: (text) => readMetrics(fileOf(text)),
    refuses: ["journal.corrupt"],
  },
  {
    name: "trace",
    sound: jsonOf(SpanBatch),
    decode: async (text) => {
      for await (const _ of readTrace([fileOf(text)]));
    },
    refuses: ["journal.corrupt"],
  },
  {
    name: "profile",
    sound: jsonOf(contracts.Profile),
    decode: (text) => readProfile(fileOf(text), "w"),
    refuses: ["profile.invalid"],
  },
  {
    name: "note of a checkpoint",
    sound: fc.constant('{"step":1,"score":null,"components":[]}'),
    decode: (text) =>
      new Checkpoints(
        join(fileOf(text, join("step-1", "checkpoint.json")), "../.."),
        contracts.CheckpointsConfig.parse({}),
      ).list(),
    refuses: [],
  },
  {
    name: "configuration file",
    sound: anyJson.map((value) => JSON.stringify(value)),
    decode: (text) => readConfigFile(fileOf(text)),
    refuses: ["config.unreadable"],
    isOwn: true,
  },
  ...runFiles.map((name) => ({
    name: `${name} of a run's folder`,
    sound: fc.constant("{}"),
    decode: (text: string) => readRun(join(fileOf(text, name), "..")),
    refuses: ["journal.corrupt"] as const,
  })),
  { name: "address", sound: fc.constant("tcp:[::1]:80"), decode: parseAddress, refuses: ["link.refused"] },
  {
    name: "placement",
    sound: fc.constantFrom("all", "0-3", "0-3:0-1", "node:0-1"),
    decode: (text) => parsePlacement("rollout", text),
    refuses: ["placement.invalid"],
  },
  {
    name: "Retry-After",
    sound: fc.constantFrom("3", "Wed, 21 Oct 2026 07:28:00 GMT"),
    decode: (text) => parseRetryAfter(text, 0),
    refuses: [],
  },
  { name: "times of a shell", sound: fc.constant("0m1.2s 0m0.1s"), decode: parseTimes, refuses: [] },
  { name: "ticks of cores", sound: fc.constant("cpu0 1 2 3 4 5 6 7 8\n"), decode: parseCoreTicks, refuses: [] },
];

const block = fc.array(withArrays).map((values) => new ItemEncoder().encode(values));
const schemasOf = (module: object): [string, z.ZodType][] =>
  Object.entries(module).filter((entry): entry is [string, z.ZodType] => entry[1] instanceof z.ZodType);

export const valueRows: readonly Row<unknown>[] = [
  {
    name: "block of items",
    sound: block,
    decode: (value) => decodeItems(readMessage(contracts.ItemBlock, value), () => "kept"),
    refuses: ["link.protocol"],
    hostile: [
      [
        "a block of items that all lie elsewhere",
        () => ({
          data: new Uint8Array(0),
          lengths: new Uint32Array(200_000),
          shapes: [],
          kept: Array.from({ length: 200_000 }, (_, index) => ({ index, segment: "s", sizeBytes: 1 })),
        }),
      ],
      [
        "shapes of many keys",
        () => ({
          data: new Uint8Array(0),
          lengths: new Uint32Array(0),
          shapes: Array.from({ length: 32 }, () => Array.from({ length: 20_000 }, (_, i) => `k${i}`)),
        }),
      ],
      [
        "more shapes than there are ids",
        () => ({ data: new Uint8Array(0), lengths: new Uint32Array(0), shapes: new Array(100_000).fill([]) }),
      ],
      [
        "a shape with the prototype",
        () => ({ data: Uint8Array.of(0x40, 0x80), lengths: Uint32Array.of(2), shapes: [["__proto__"]] }),
      ],
      [
        "lengths beyond 2^53",
        () => ({ data: new Uint8Array(1), lengths: new Uint32Array(100_000).fill(0xffffffff), shapes: [] }),
      ],
    ],
  },
  {
    name: "arguments of a call",
    sound: fc.array(fc.oneof(sendable, reference, fc.record({ deep: fc.array(reference, { maxLength: 2 }) })), {
      maxLength: 4,
    }),
    decode: async (value) => {
      const { args } = readMessage(contracts.CallRequest.pick({ args: true }), { args: value });
      if (holdReferences(args)) await decodeArguments(args, argumentPorts);
    },
    refuses: ["link.protocol", "worker.load-failed"],
    hostile: [
      ["a group of all ranks that numbers reach", () => [{ $group: "g", size: Number.MAX_SAFE_INTEGER, methods: [] }]],
      [
        "a group of many methods",
        () => [{ $group: "g", size: 1, methods: Array.from({ length: 100_000 }, (_, i) => `m${i}`) }],
      ],
      [
        "a group whose methods are an object's",
        () => [{ $group: "g", size: 1, methods: ["__proto__", "then", "constructor"] }],
      ],
      [
        "a module that is no file",
        () => [
          { $channel: "c", role: "sink", granularity: 1, schema: { module: "data:text/javascript,", exportName: "x" } },
        ],
      ],
      [
        "a module of Node's",
        () => [{ $channel: "c", role: "sink", granularity: 1, schema: { module: "node:fs", exportName: "default" } }],
      ],
    ],
  },
  ...[...schemasOf(contracts), ...schemasOf(actionMessages)].map(
    ([name, schema]): Row<unknown> => ({
      name: `message '${name}'`,
      sound: arbitraryOf(schema),
      decode: (value) => readMessage(schema, value),
      refuses: ["link.protocol"],
    }),
  ),
];
