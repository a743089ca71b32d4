/**
 * The holder of one node's key, at servers that `treadle cluster init` has configured. NATS does not check where its own
 * answers go, nor members where they are asked to send theirs, so everything is tried with others' subjects to answer to.
 */
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ControlPlane, NatsConfig } from "@treadle/contracts";
import { makeKey, NatsRunStore, openNatsControlPlane, openRelay } from "@treadle/transport";
import { connectStranger, type NatsServer, startNatsServer } from "@treadle/transport/testing";
import { afterAll, beforeAll, expect, test } from "vitest";
import { clusterValues, initCluster } from "../../packages/cli/src/cluster-folder.ts";
import { until } from "../support/cluster.ts";

type Stranger = Awaited<ReturnType<typeof connectStranger>>;
type Stream = {
  config: { name: string };
  state: { messages: number; bytes: number; first_seq: number; last_seq: number };
};

let folder: string;
let server: NatsServer;
let attacker: Stranger;
/** It may do everything, and hears everything. */
let observer: Stranger;
const heard: string[] = [];
const closing: (() => Promise<unknown>)[] = [];

async function natsOf(role: "runner" | "node", name?: string): Promise<NatsConfig> {
  return NatsConfig.parse({ ...(await clusterValues(folder, { role, name })), url: server.url, durableRuns: true });
}

async function planeOf(role: "runner" | "node", name?: string): Promise<ControlPlane> {
  const nats = await natsOf(role, name);
  const plane = await openNatsControlPlane({ nats, name: `${role} ${name ?? ""}`, keepsRecords: role === "runner" });
  closing.push(() => plane.close());
  return plane;
}

/** Everything that streams are and hold, which an attacker might change. */
async function streams(): Promise<(Stream & { consumers: unknown })[]> {
  const ask = async (subject: string) => (await observer.request(`$JS.API.${subject}`)).json<Record<string, unknown>>();
  const { streams } = (await ask("STREAM.LIST")) as { streams: Stream[] };
  return Promise.all(
    streams.map(async ({ config, state: { messages, bytes, first_seq, last_seq } }) => {
      const { consumers } = await ask(`CONSUMER.NAMES.${config.name}`);
      return { config, state: { messages, bytes, first_seq, last_seq }, consumers };
    }),
  );
}

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-keys-"));
  const [config = ""] = await initCluster(folder, { servers: ["127.0.0.1:4222"] }, ["a", "b"]);
  const accounts = join(folder, "accounts.conf");
  const text = await readFile(accounts, "utf8");
  const own = makeKey();
  const observed = text.replace('"users": [', `"users": [{ "nkey": "${own.publicKey}" },`);
  expect(observed).not.toBe(text);
  await writeFile(accounts, observed);
  server = await startNatsServer({ args: ["-c", config] });
  observer = await connectStranger(server.url, new TextEncoder().encode(own.seed));
  closing.push(() => observer.close());
  observer.subscribe(">", { callback: (_, { subject }) => void heard.push(subject) });
  await observer.flush();

  const runner = await planeOf("runner");
  await runner.announce("run", "run-1", {}, () => "an answer");
  await runner.keep("run-1", { state: "running" });
  const store = await NatsRunStore.open({ nats: await natsOf("runner"), name: "runner", runId: "run-1", folder });
  closing.push(() => store.close());
  await store.take();
  await store.keep("trust"); // any file
  await store.append("one");
  const node = await planeOf("node", "a");
  await node.announce("node", "a", { cpus: 1 }, () => "an answer");
  const nats = await natsOf("runner");
  const relay = await openRelay({
    nats,
    runId: "run-1",
    token: "a token that only this run has",
    member: "runner",
    ports: {},
  });
  closing.push(() => relay.close());
  const other = await planeOf("node", "b");
  await other.announce("node", "b", { cpus: 1 }, () => "an answer");
  await until(() => node.members("run").length === 1 && runner.members("node").length === 2, "the members");

  const seed = (await readFile(join(folder, "node-b.nk"), "utf8")).trim();
  attacker = await connectStranger(server.url, new TextEncoder().encode(seed));
  closing.push(() => attacker.close());
}, 60_000);
afterAll(async () => {
  for (const close of closing.splice(0).reverse()) await close();
  await server[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
});

const kept = ["KV_treadle-records", "KV_treadle-journals", "OBJ_treadle-runs", "KV_treadle-members", "KV_other"];
const filter = JSON.stringify({ filter: ">" });
const push = (deliver_subject: string, stream_name: string) =>
  JSON.stringify({ stream_name, config: { deliver_subject, deliver_policy: "all", ack_policy: "none" } });
const config = (name: string) =>
  JSON.stringify({ name, subjects: ["treadle.>"], storage: "file", retention: "limits" });

/** What its key may say, since nodes do, and nobody is to be had to say for it. */
const sayable = ["treadle.command.run.run-1.99", "treadle.topic.log.run-99", "treadle.topic.heartbeats.run-99"];
/** What nothing but an attack says. */
const forged = [
  ...sayable,
  "treadle.command.node.a.99",
  "treadle.beat.node.victim",
  "treadle.beat.run.victim",
  "treadle.entry.node.victim",
  "treadle.entry.run.victim",
  "$KV.treadle-records.victim",
  "$KV.treadle-journals.run-1.n.000000001",
  "$O.treadle-runs.C.victim",
  "_INBOX.victim.nuid.1",
];
const destructive = [
  ...kept.flatMap((stream) => [`$JS.API.STREAM.PURGE.${stream}`, `$JS.API.STREAM.DELETE.${stream}`]),
  ...kept.map((stream) => `$JS.API.STREAM.UPDATE.${stream}`),
];

/** Every request of JetStream, as a client would send it, and some that none would. */
function requests(deliver: string): [subject: string, body: string][] {
  return kept.flatMap((stream): [string, string][] => [
    [`$JS.API.STREAM.PURGE.${stream}`, ""],
    [`$JS.API.STREAM.PURGE.${stream}`, filter],
    [`$JS.API.STREAM.DELETE.${stream}`, ""],
    [`$JS.API.STREAM.UPDATE.${stream}`, config(stream)],
    [`$JS.API.STREAM.CREATE.${stream}`, config(stream)],
    [`$JS.API.STREAM.INFO.${stream}`, ""],
    [`$JS.API.STREAM.MSG.GET.${stream}`, '{"seq":1}'],
    [`$JS.API.STREAM.MSG.DELETE.${stream}`, '{"seq":1}'],
    [`$JS.API.STREAM.SNAPSHOT.${stream}`, JSON.stringify({ deliver_subject: deliver })],
    [`$JS.API.STREAM.RESTORE.${stream}`, config(stream)],
    [`$JS.API.DIRECT.GET.${stream}`, '{"seq":1}'],
    [`$JS.API.DIRECT.GET.${stream}.$KV.treadle-members.node.b`, ""],
    [`$JS.API.CONSUMER.CREATE.${stream}`, push(deliver, stream)],
    [`$JS.API.CONSUMER.CREATE.${stream}.mine`, push(deliver, stream)],
    [`$JS.API.CONSUMER.CREATE.${stream}.mine.>`, push(deliver, stream)],
    [`$JS.API.CONSUMER.DURABLE.CREATE.${stream}.mine`, push(deliver, stream)],
    [`$JS.API.CONSUMER.MSG.NEXT.${stream}.mine`, "1"],
    [`$JS.API.CONSUMER.INFO.${stream}.mine`, ""],
    [`$JS.API.CONSUMER.DELETE.${stream}.mine`, ""],
    [`$JS.ACK.${stream}.mine.1.1.1.1.1`, ""],
    [`$JS.FC.${stream}.mine`, ""],
    ["$JS.API.INFO", ""],
    ["$JS.API.STREAM.NAMES", ""],
    ["$JS.API.STREAM.LIST", ""],
    ["$JS.API.STREAM.CREATE.EVERYTHING", config("EVERYTHING")],
  ]);
}

/** What its key lets it say to members, who answer. */
const questions = (): [subject: string, body: string][] => {
  const heardOf = (prefix: string) => heard.filter((subject) => subject.startsWith(prefix));
  const incarnations = heardOf("treadle.command.run.run-1.").slice(0, 1);
  return [
    ...[...new Set(incarnations)].map((subject): [string, string] => [subject, '{"method":"exited"}']),
    ["treadle.relay.run-1.open.runner", "nonsense"],
    ["treadle.relay.run-1.open.runner", JSON.stringify({ tunnel: crypto.randomUUID(), target: "nobody" })],
    ["treadle.probe", ""],
    ["treadle.ask.run.run-1", ""],
    ["treadle.ask.node.a", "{}"],
    ["treadle.beat.node.b", '{"incarnation":1}'],
    ["treadle.entry.node.b", filter],
  ];
};

test("NP5, NP6: no request of JetStream passes, whoever is to get its answer, and no member says for it what it may not", async () => {
  const runner = await planeOf("runner");
  const node = await planeOf("node", "b");
  const run = await until(() => node.members("run")[0], "the run");
  await node.command(run, "exited", {}, { timeoutMs: 5000 }).catch(() => {}); // its subject is heard
  const before = await streams();
  heard.length = 0;
  await node.command(run, "exited", {}, { timeoutMs: 5000 }).catch(() => {});
  const replies = [...forged, ...destructive, undefined];
  // Its own words, where DIRECT.GET might say them.
  for (const subject of ["$KV.treadle-members.node.b", "$KV.treadle-records.node.b"]) attacker.publish(subject, filter);
  for (const reply of replies) {
    const all = [...requests(reply ?? "_INBOX.mine"), ...questions()];
    for (const [subject, body] of all) attacker.publish(subject, body, reply === undefined ? {} : { reply });
  }
  for (const subject of [...forged, ...destructive]) if (!sayable.includes(subject)) attacker.publish(subject, filter);
  await attacker.flush();
  // What was asked before has been answered when these are.
  await runner.keep("after", {});
  expect(await node.command(run, "exited", {}, { timeoutMs: 20_000 }).catch(({ code }) => code)).not.toBe("node.lost");
  await observer.flush();
  expect(heard.filter((subject) => forged.includes(subject) || destructive.includes(subject))).toEqual([]);
  expect(heard.filter((subject) => subject.startsWith("$JS.API.") && subject.includes("EVERYTHING"))).toEqual([]);
  const others = (all: Awaited<ReturnType<typeof streams>>) =>
    all.filter(({ config: { name } }) => name !== "KV_treadle-records");
  expect(others(await streams())).toEqual(others(before));
  expect(others(before).map(({ config: { name } }) => name)).toEqual(["KV_treadle-journals", "OBJ_treadle-runs"]);
  expect(Object.fromEntries(await runner.kept())).toEqual({
    "run-1": { value: { state: "running" } },
    after: { value: {} },
  });
}, 120_000);

test("NP6: what is kept of runs it neither reads nor hears", async () => {
  const denied: string[] = [];
  void (async () => {
    for await (const status of attacker.status()) if (status.type === "error") denied.push(String(status.error));
  })();
  for (const subject of [
    "$KV.treadle-journals.>",
    "$KV.treadle-records.>",
    "$O.treadle-runs.>",
    "$JS.>",
    "treadle.>",
  ]) {
    const before = denied.length;
    attacker.subscribe(subject, { callback: () => {} });
    await until(() => denied.length > before, `listening to '${subject}' to be denied`);
  }
});
