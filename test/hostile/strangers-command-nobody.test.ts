/**
 * Attackers at the NATS server: one without credentials, one with a node's key, one in an account that everybody shares, who
 * hears and may say everything. The members are control planes as agents and runners open them.
 */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { networkInterfaces, tmpdir } from "node:os";
import { join } from "node:path";
import { type ControlPlane, type Member, NatsConfig, type TreadleError } from "@treadle/contracts";
import { makeKey, NatsRunStore, openNatsControlPlane, parseTrust } from "@treadle/transport";
import { connectStranger, type NatsServer, startNatsServer } from "@treadle/transport/testing";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { addNode, clusterValues, initCluster } from "../../packages/cli/src/cluster-folder.ts";
import { readCluster, remoteRuns } from "../../packages/cli/src/commands/cluster-status.ts";
import { renderStatus } from "../../packages/cli/src/view/status.ts";
import { Envelopes } from "../../packages/transport/src/control-plane/envelopes.ts";
import { until } from "../support/cluster.ts";

const secret = "a token that nobody else may read";
const timeoutMs = 5000;
const spawnOf = (n: number) => ({ run: "r", number: n, boot: { token: secret } });

let folder: string;
let server: NatsServer;
const open: ControlPlane[] = [];
const done: unknown[] = [];

async function planeOf(role: "runner" | "node", name?: string, cluster = folder): Promise<ControlPlane> {
  const values = await clusterValues(cluster, { role, name });
  const nats = NatsConfig.parse({ ...values, url: server.url });
  const plane = await openNatsControlPlane({
    nats,
    name: `${role} ${name ?? ""}`,
    keepsRecords: role === "runner",
  });
  open.push(plane);
  return plane;
}

const agent = async (name: string): Promise<ControlPlane> => {
  const plane = await planeOf("node", name);
  await plane.announce("node", name, { cpus: 1 }, (method, body) => {
    done.push([name, method, body]);
    return { pid: 7, secret };
  });
  return plane;
};

const memberOf = (plane: ControlPlane, name: string): Promise<Member> =>
  until(() => plane.members("node").find((member) => member.name === name), `node '${name}'`);

const codeOf = (asked: Promise<unknown>): Promise<string> =>
  asked.then(
    () => "accepted",
    (error: TreadleError) => error.code,
  );

async function seedOf(file: string): Promise<Uint8Array> {
  return new TextEncoder().encode((await readFile(`${folder}/${file}`, "utf8")).trim());
}

async function close(): Promise<void> {
  await Promise.all(open.splice(0).map((plane) => plane.close()));
  await server?.[Symbol.asyncDispose]();
}

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-keys-"));
  await initCluster(folder, { servers: ["127.0.0.1:4222"] }, ["a", "b"]);
});

afterAll(() => rm(folder, { recursive: true, force: true }));

describe("at servers that 'treadle cluster init' has configured", () => {
  /** What the server denied this client. */
  const denied: string[] = [];
  let stranger: Awaited<ReturnType<typeof connectStranger>>;

  beforeAll(async () => {
    await addNode(folder, "c");
    server = await startNatsServer({ args: ["-c", `${folder}/nats.conf`] });
    await agent("a");
    await agent("c");
    stranger = await connectStranger(server.url, await seedOf("node-b.nk"));
    void (async () => {
      for await (const status of stranger.status()) if (status.type === "error") denied.push(String(status.error));
    })();
  });
  afterAll(async () => {
    await stranger.close();
    await close();
  });

  test("the server bounds what its clients take of it", async () => {
    expect(stranger.info).toMatchObject({ max_payload: 2 ** 20 });
    const config = await readFile(`${folder}/nats.conf`, "utf8");
    expect(config).toMatch(/^max_connections: 8192$/m);
    expect(config).toMatch(/^max_subscriptions: 65536$/m);
  });

  test("a client without credentials, or with a key that is not listed, is not admitted", async () => {
    await expect(connectStranger(server.url)).rejects.toThrow(/authorization/i);
    const seed = new TextEncoder().encode(makeKey().seed);
    await expect(connectStranger(server.url, seed)).rejects.toThrow(/authorization/i);
  });

  test("a runner starts work on nodes, and nodes report to it; a node that was added later is one of them", async () => {
    const runner = await planeOf("runner");
    const reports: unknown[] = [];
    await runner.announce("run", "run-1", {}, (method, body) => void reports.push([method, body]));
    for (const name of ["a", "c"]) {
      const answer = await runner.command(await memberOf(runner, name), "spawn", spawnOf(1), { timeoutMs });
      expect(answer).toEqual({ pid: 7, secret });
    }
    const node = open[0] as ControlPlane;
    const run = await until(() => node.members("run")[0], "the run");
    await node.command(run, "exited", { node: "a" }, { timeoutMs });
    expect(reports).toEqual([["exited", { node: "a" }]]);
    // A node may report, and nothing else.
    expect(await codeOf(node.command(run, "stop", {}, { timeoutMs }))).toBe("control-plane.untrusted");
  });

  test.each([
    "treadle.command.>",
    "treadle.command.node.a.*",
    "treadle.command.run.*.*",
    "treadle.topic.>",
    "_INBOX.>",
    "$KV.>",
    ">",
  ])("NP1, NP2, NP4: a node's key does not listen to '%s'", async (subject) => {
    const before = denied.length;
    stranger.subscribe(subject, { callback: () => {} });
    await until(() => denied.length > before, `'${subject}' to be denied`);
    expect(denied.at(-1)).toMatch(/subscription/i);
  });

  const notForNodes = [
    "treadle.command.node.a.1",
    "treadle.command.node.b.1",
    "treadle.beat.node.a",
    "treadle.beat.run.run-1",
    "treadle.entry.node.a",
    "treadle.entry.run.run-1",
    "$KV.treadle-members.node.b",
    "$KV.treadle-records.run-1",
    "$KV.treadle-journals.run-1.n.000000001",
    "$O.treadle-runs.C.x",
    "$JS.API.INFO",
    "$JS.API.STREAM.INFO.KV_treadle-records",
    "$JS.API.STREAM.CREATE.KV_treadle-records",
    "$JS.API.STREAM.DELETE.KV_treadle-journals",
    "$JS.API.STREAM.UPDATE.KV_treadle-records",
    "$JS.API.STREAM.MSG.GET.KV_treadle-journals",
    "$JS.API.DIRECT.GET.KV_treadle-records",
    "$JS.API.STREAM.PURGE.KV_treadle-journals",
    "$JS.API.CONSUMER.CREATE.KV_treadle-records.x",
    "_INBOX.UANOTHERKEY.nuid.token",
  ];
  const notForRunners = [
    "treadle.beat.node.a",
    "treadle.topic.log.run-1",
    "treadle.entry.node.a",
    "$JS.API.STREAM.DELETE.KV_treadle-journals",
    "$JS.API.STREAM.UPDATE.KV_treadle-records",
    "$JS.API.STREAM.CREATE.EVERYTHING",
    "_INBOX.UANOTHERKEY.nuid.token",
  ];

  test.each([
    ...notForNodes.map((subject) => ({ file: "node-b.nk", subject })),
    ...notForRunners.map((subject) => ({ file: "runner.nk", subject })),
  ])("NP1, NP2, NP3, NP5: who has $file says nothing under '$subject', not even in answer to itself", async (each) => {
    const { file, subject } = each;
    const client = await connectStranger(server.url, await seedOf(file));
    const denials: string[] = [];
    void (async () => {
      for await (const status of client.status()) if (status.type === "error") denials.push(String(status.error));
    })();
    const own = client.subscribe("treadle.probe");
    client.publish(subject, "{}");
    await until(() => denials.length === 1, `'${subject}' to be denied`);
    client.publish("treadle.probe", "", { reply: subject });
    for await (const message of own) if (message.reply === subject) break;
    client.publish(subject, "{}");
    await until(() => denials.length === 2, `'${subject}' to be denied in answer, too`);
    expect(denials.join()).toMatch(/publish.*publish/is);
    await client.close();
  });
});

describe("in an account that everybody shares", () => {
  let stranger: Awaited<ReturnType<typeof connectStranger>>;
  let runner: ControlPlane;
  let other: ControlPlane;
  const heard: { subject: string; text: string }[] = [];
  const commands = () => heard.filter(({ subject }) => subject.includes(".command.node.a."));
  const say = async (text: string, subject = commands()[0]?.subject ?? ""): Promise<string> =>
    (
      await stranger.request(subject, text, {
        timeout: timeoutMs,
        noMux: true,
        reply: `_INBOX.answer.${crypto.randomUUID()}`,
      })
    ).string();

  beforeAll(async () => {
    server = await startNatsServer();
    // Their keys decide; the server takes whatever name they have.
    const elsewhere = join(folder, "elsewhere");
    await initCluster(elsewhere, { servers: ["127.0.0.1:4222"] }, ["a"]);
    await addNode(folder, "late");
    await addNode(folder, "away");
    stranger = await connectStranger(server.url);
    stranger.subscribe(">", {
      callback: (_, message) => void heard.push({ subject: message.subject, text: message.string() }),
    });
    await stranger.flush();
    await agent("a");
    await agent("b");
    runner = await planeOf("runner");
    other = await planeOf("runner", undefined, elsewhere);
    done.length = 0;
    await runner.command(await memberOf(runner, "a"), "spawn", spawnOf(1), { timeoutMs });
  });
  afterAll(async () => {
    await stranger.close();
    await close();
  });

  test("CP3, TR3: neither the token in a command nor what an answer says can be read", () => {
    expect(commands()).toHaveLength(1);
    expect(heard.length).toBeGreaterThan(5);
    const everything = heard.map(({ text }) => text).join("\n");
    expect(everything).not.toContain(secret);
    const decoded = heard.map(({ text }) => Buffer.from(/"box":"([^"]+)"/.exec(text)?.[1] ?? "", "base64").toString());
    expect(decoded.join("\n")).not.toContain(secret);
  });

  test("TR2: what was heard and is sent again acts no second time, here or at another node", async () => {
    const [{ text, subject } = { text: "", subject: "" }] = commands();
    expect(await say(text)).toContain("control-plane.untrusted");
    const b = await memberOf(runner, "b");
    const answer = await say(text, subject.replace(/node\.a\.\d+/, `node.b.${b.incarnation}`));
    expect(answer).toContain("control-plane.untrusted");
    expect(done).toEqual([["a", "spawn", spawnOf(1)]]);
  });

  test("CP3, TR1: a plain command, a changed one, and one of another cluster's runner act not at all", async () => {
    const plain = JSON.stringify({ method: "spawn", body: spawnOf(2) });
    expect(await say(plain)).toContain("control-plane.untrusted");
    const sealed = JSON.parse(commands()[0]?.text ?? "{}") as Record<string, unknown>;
    for (const change of [{ sequence: 99 }, { sender: crypto.randomUUID() }, { from: `U${"A".repeat(55)}` }]) {
      expect(await say(JSON.stringify({ ...sealed, ...change }))).toContain("control-plane.untrusted");
    }
    const asked = other.command(await memberOf(other, "a"), "spawn", spawnOf(3), { timeoutMs });
    expect(await codeOf(asked)).toBe("control-plane.untrusted");
    expect(done).toEqual([["a", "spawn", spawnOf(1)]]);
  });

  test("CP4: an answer goes where members get answers, and nowhere else, even where the server would take it there", async () => {
    const { text, subject } = commands()[0] ?? { text: "", subject: "" };
    const before = heard.length;
    for (const reply of [
      "treadle.beat.node.victim",
      "$JS.API.STREAM.PURGE.KV_treadle-records",
      "_INBOX.victim",
      "_INBOX.answer.>",
    ]) {
      stranger.publish(subject, text, { reply });
    }
    expect(await say(text)).toContain("control-plane.untrusted"); // what was asked before has been answered
    await stranger.flush();
    const said = heard.slice(before).map((each) => each.subject);
    expect(said.filter((each) => /victim|PURGE|INBOX\.answer\.>/.test(each))).toEqual([]);
  });

  test("CP1: what is not signed displaces nobody, and ends no agent", async () => {
    const a = await memberOf(runner, "a");
    const forged = { incarnation: a.incarnation + 1, version: 0, body: { cpus: 64 } };
    const changes: unknown[] = [];
    const stop = runner.onMember("node", (change) => changes.push(change));
    stranger.publish("treadle.entry.node.a", JSON.stringify(forged));
    stranger.publish(
      "treadle.entry.node.a",
      JSON.stringify({ ...forged, proof: { from: "x", seal: "y", signature: "z" } }),
    );
    stranger.publish("treadle.ask.node.a", JSON.stringify(forged));
    await stranger.flush();
    expect(await runner.command(a, "spawn", spawnOf(5), { timeoutMs })).toEqual({ pid: 7, secret });
    expect(runner.members("node").find(({ name }) => name === "a")).toEqual(a);
    expect(changes).toEqual([]);
    stop();
  });

  test("TR5: how a run ended is what its runner has signed; another's word is shown as unsigned, and hides none", async () => {
    const info = { host: "h", pid: 1, startedAt: "2026-01-01T00:00:00Z" };
    const record = (runId: string, state: string) => ({ ...info, runId, workflow: "w", state, step: 3 });
    await runner.keep("ours", record("ours", "finished"));
    const forger = await openNatsControlPlane({ nats: NatsConfig.parse({ url: server.url }), name: "forger" });
    open.push(forger);
    const proof = { from: makeKey().publicKey, signature: "AAAA" };
    for (let i = 0; i < 9; i++) await forger.keep(`theirs-${i}`, record(`theirs-${i}`, "failed"));
    await forger.keep("signed-by-nobody", { value: record("signed-by-nobody", "failed"), proof });
    await other.keep("of-another-cluster", record("of-another-cluster", "failed"));
    const { ended } = await readCluster(runner);
    expect(ended.filter(({ isUntrusted }) => !isUntrusted).map(({ runId }) => runId)).toEqual(["ours"]);
    expect(ended).toHaveLength(12);
    const shown = renderStatus({ nodes: [], runs: [], ended });
    expect(shown).toMatch(/\nended\n {2}ours: finished, step 3\nended, unsigned: anybody at the server may say so\n/);
    const listed = await remoteRuns(runner).list();
    expect(listed).toEqual([{ runId: "ours", state: "finished" }]);
    // Its own word under another name, or over that of a run, is unsigned, too.
    await forger.keep("ours", record("ours", "failed"));
    expect((await readCluster(runner)).ended.find(({ runId }) => runId === "ours")).toMatchObject({
      isUntrusted: true,
    });
  });

  test("CP5: what is not signed is kept as far as it takes to say why, and nothing that is large", async () => {
    const say = (name: string, filler: number) => {
      const body = { filler: "x".repeat(filler) };
      stranger.publish(`treadle.entry.node.${name}`, JSON.stringify({ incarnation: 5, version: 1, body }));
      stranger.publish(`treadle.beat.node.${name}`, JSON.stringify({ incarnation: 5, version: 1 }));
    };
    say("large", 900_000);
    say("small", 900);
    await memberOf(runner, "small"); // and the one before was heard, too
    expect(runner.members("node").some(({ name }) => name === "large")).toBe(false);
  });

  test("CP5: what is not signed changes nothing of who is there, and hides nobody who comes, however new it calls itself", async () => {
    const a = await memberOf(runner, "a");
    const changes: { member: Member; type: string }[] = [];
    const stop = runner.onMember("node", (change) => changes.push(change));
    const say = (name: string, incarnation: number) => {
      const entry = { incarnation, version: 1000, body: { isDraining: true } };
      stranger.publish(`treadle.entry.node.${name}`, JSON.stringify(entry));
      stranger.publish(`treadle.beat.node.${name}`, JSON.stringify({ incarnation, version: 1000 }));
    };
    say("a", a.incarnation);
    const newest = [2 ** 52, Number.MAX_SAFE_INTEGER];
    for (const incarnation of newest) for (const name of ["a", "late"]) say(name, incarnation);
    const forged = await memberOf(runner, "late");
    expect(forged.incarnation).toBe(2 ** 52); // it is told why that one is not used
    expect(await codeOf(runner.command(forged, "spawn", spawnOf(6), { timeoutMs }))).toBe("control-plane.untrusted");
    await agent("late");
    const late = await until(
      () => runner.members("node").find((each) => each.name === "late" && each.incarnation !== forged.incarnation),
      "the node that came later",
    );
    for (const incarnation of newest) for (const name of ["a", "late"]) say(name, incarnation);
    for (const member of [a, late]) {
      expect(await runner.command(member, "spawn", spawnOf(7), { timeoutMs })).toEqual({ pid: 7, secret });
      expect(runner.members("node").find(({ name }) => name === member.name)).toEqual(member);
    }
    expect(changes.map(({ type, member: { name } }) => `${name} ${type}`)).toEqual([
      "late joined",
      "late left",
      "late joined",
    ]);
    stop();
  });

  test.each([
    ["a node's key, as another node", "node", "b", "node", "away"],
    ["a node's key, as a run", "node", "b", "run", "run-9"],
    ["a runner's key, as a node", "runner", undefined, "node", "away"],
  ] as const)("TR1: %s, announces nobody: it is shown as untrusted, and gets no command to read", async (...row) => {
    const [, role, own, kind, name] = row;
    const asked: unknown[] = [];
    const impostor = await planeOf(role, own);
    const announced = await impostor.announce(kind, name, { cpus: 64 }, (...all) => void asked.push(all));
    const isIts = (each: Member) => each.name === name && each.incarnation === announced.incarnation;
    const member = await until(() => runner.members(kind).find(isIts), `${kind} '${name}'`);
    expect(member.isUntrusted).toBe(true);
    expect(await codeOf(runner.command(member, "spawn", spawnOf(8), { timeoutMs }))).toBe("control-plane.untrusted");
    expect(asked).toEqual([]);
  });

  test("TR4: a node that a stranger has announced gets nothing to read, however it names its key", async () => {
    const proof = { from: `U${"A".repeat(55)}`, seal: `X${"A".repeat(55)}`, signature: "AAAA" };
    const liar = await openNatsControlPlane({ nats: NatsConfig.parse({ url: server.url }), name: "liar" });
    open.push(liar);
    const asked: unknown[] = [];
    await liar.announce("node", "liar", { cpus: 64, proof }, (...all) => void asked.push(all));
    const member = await memberOf(runner, "liar");
    expect(await codeOf(runner.command(member, "spawn", spawnOf(4), { timeoutMs }))).toBe("control-plane.untrusted");
    expect(asked).toEqual([]);
  });
});

test.each([
  ["sources", { sources: [{ name: "KV_treadle-journals" }] }],
  ["republish", { republish: { src: ">", dest: "stolen.>" } }],
  ["treadle.topic", { subjects: ["$KV.treadle-records.>", "treadle.topic.>"] }],
])(
  "nothing is kept in a stream that somebody has made first, with '%s', and the refusal names it",
  async (what, trap) => {
    server = await startNatsServer({ args: ["-c", `${folder}/nats.conf`] });
    const stranger = await connectStranger(server.url, await seedOf("runner.nk"));
    const trusted = parseTrust(await readFile(`${folder}/trust`, "utf8"), "trust");
    const key = trusted.find(({ role }) => role === "runner")?.key;
    const inbox = `_INBOX.${key}`;
    const answer = stranger.subscribe(`${inbox}.x`, { max: 1 });
    const honest = { name: "KV_treadle-records", subjects: ["$KV.treadle-records.>"], max_msgs_per_subject: 1 };
    const config = {
      ...honest,
      storage: "file",
      allow_direct: true,
      allow_rollup_hdrs: true,
      deny_delete: true,
      ...trap,
    };
    stranger.publish("$JS.API.STREAM.CREATE.KV_treadle-records", JSON.stringify(config), { reply: `${inbox}.x` });
    for await (const message of answer) expect(message.string()).not.toContain('"error"');
    const opened = planeOf("runner").then(
      () => "opened",
      (error: TreadleError) => `${error.code}: ${error.message}`,
    );
    expect(await opened).toMatch(/^control-plane.refused: .*'KV_treadle-records'.*nats stream rm/);
    expect(await opened).toContain(what);
    await stranger.close();
    await close();
  },
);

describe("CP6: without keys", () => {
  afterEach(close);
  const withoutKeys = async (host: string, port: number): Promise<ControlPlane> => {
    const plane = await openNatsControlPlane({ nats: NatsConfig.parse({ url: `nats://${host}:${port}` }), name: "x" });
    open.push(plane);
    return plane;
  };
  const joined = (plane: ControlPlane, kind: "node" | "run", name: string): Promise<string> =>
    plane
      .announce(kind, name, {}, (_, body) => body)
      .then(
        () => "joined",
        (error: TreadleError) => `${error.code}: ${error.message}`,
      );
  const outer = Object.values(networkInterfaces())
    .flat()
    .find((each) => each?.family === "IPv4" && !each.internal)?.address;

  test.each(["node", "run"] as const)(
    "no %s joins at a server that others reach, however it is dialled",
    async (kind) => {
      server = await startNatsServer({ host: "0.0.0.0" });
      for (const host of ["127.0.0.1", "localhost", ...(outer === undefined ? [] : [outer])]) {
        const refusal = await joined(await withoutKeys(host, server.port), kind, `at-${host.replaceAll(".", "-")}`);
        expect(refusal).toMatch(/^control-plane.untrusted: .*treadle cluster init/);
        if (host !== outer) expect(refusal).toContain("listens on '0.0.0.0'");
      }
      const nats = NatsConfig.parse({ url: `nats://127.0.0.1:${server.port}` });
      const kept = NatsRunStore.open({ nats, name: "x", runId: "run-1", folder });
      expect(await codeOf(kept)).toBe("control-plane.untrusted");
    },
  );

  test("EN1: who only listens at a server without keys learns neither what is asked, a run's token among it, nor what is answered", async () => {
    server = await startNatsServer();
    const stranger = await connectStranger(server.url);
    const heard: string[] = [];
    stranger.subscribe(">", { callback: (_, message) => void heard.push(`${message.subject} ${message.string()}`) });
    await stranger.flush();
    const node = await withoutKeys("127.0.0.1", server.port);
    expect(await joined(node, "node", "a")).toBe("joined");
    const runner = await withoutKeys("127.0.0.1", server.port);
    const member = await memberOf(runner, "a");
    expect(await runner.command(member, "spawn", { token: secret }, { timeoutMs })).toEqual({ token: secret });
    await stranger.flush();
    expect(heard.filter((each) => each.includes(".command.")).length).toBeGreaterThan(0);
    expect(heard.filter((each) => each.startsWith("_INBOX.")).length).toBeGreaterThan(0);
    expect(heard.join("\n")).not.toContain(secret);
    await stranger.close();
  });

  test("EN2: without keys a plain command does nothing, and an answer to another command is no answer", async () => {
    const [asker, member] = [new Envelopes(), new Envelopes()];
    const first = asker.ask("one", member.sealKey);
    const second = asker.ask("two", member.sealKey);
    const received = member.receive(first.text);
    expect(received.text).toBe("one");
    const answer = received.seal("done");
    expect(first.open(answer)).toBe("done");
    expect(() => second.open(answer)).toThrow(/another command/);
    expect(() => new Envelopes().receive(first.text)).toThrow(/sealed for another/);
    for (const plain of ["", "{}", JSON.stringify({ method: "spawn", body: {} })])
      expect(() => member.receive(plain)).toThrow(/not sealed/);
    expect(() => asker.ask("one", "")).toThrow(/without a key/);
  });

  test("whoever has joined on loopback obeys nobody, and says nothing, through a server that came in its place and listens for all", async () => {
    server = await startNatsServer();
    const { port } = server;
    const node = await withoutKeys("127.0.0.1", port);
    expect(await joined(node, "node", "a")).toBe("joined");
    const runner = await withoutKeys("127.0.0.1", port);
    const member = await memberOf(runner, "a");
    expect(await runner.command(member, "spawn", spawnOf(1), { timeoutMs })).toEqual(spawnOf(1));
    await server[Symbol.asyncDispose]();
    await until(() => !node.isConnected && !runner.isConnected, "both to be cut off");
    server = await startNatsServer({ host: "0.0.0.0", port });
    const stranger = await connectStranger(`nats://127.0.0.1:${port}`);
    const heard: string[] = [];
    stranger.subscribe(">", { callback: (_, message) => void heard.push(message.subject) });
    await stranger.flush();
    await until(() => node.isConnected && runner.isConnected, "both to be back");
    const code = await until(async () => {
      const found = await codeOf(runner.command(member, "spawn", spawnOf(2), { timeoutMs: 60_000 }));
      return found === "node.lost" ? undefined : found; // the server may hear of the question first, then of the node
    }, "the node to answer");
    expect(code).toBe("control-plane.untrusted");
    await stranger.flush();
    expect(heard.filter((subject) => subject.includes(".command."))).toEqual([]);
    await stranger.close();
  });
});
