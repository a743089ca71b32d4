import { writeFile } from "node:fs/promises";
import { type AddressInfo, createConnection, createServer } from "node:net";
import { connect } from "@nats-io/transport-node";
import {
  type ControlPlane,
  type LinkTls,
  type Member,
  type MembershipChange,
  NatsConfig,
  type TreadleError,
} from "@treadle/contracts";
import { type NatsControlPlaneOptions, openNatsControlPlane } from "@treadle/transport";
import { freePort, type NatsServer, startNatsServer } from "@treadle/transport/testing";
import fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import { makeCertificates } from "../support/certificates.ts";
import { folder } from "../support/endpoints.ts";
import { until } from "../support/until.ts";

const toClose: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of toClose.splice(0).reverse()) await close();
});

async function serve(args: readonly string[] = [], port?: number): Promise<NatsServer> {
  const server = await startNatsServer({ args, ...(port === undefined ? {} : { port }) });
  toClose.push(() => server[Symbol.asyncDispose]());
  return server;
}

async function open(url: string | string[], options: Partial<NatsControlPlaneOptions> = {}): Promise<ControlPlane> {
  const plane = await openNatsControlPlane({ nats: NatsConfig.parse({ url }), name: "test", env: {}, ...options });
  toClose.push(() => plane.close());
  return plane;
}

/** Passes on what clients send to a server, and loses its first connection when the first subscription comes. */
async function losingOnce(url: string): Promise<string> {
  const port = Number(new URL(url).port);
  let isLost = false;
  const proxy = createServer((client) => {
    const upstream = createConnection(port, "127.0.0.1");
    const end = () => {
      client.destroy();
      upstream.destroy();
    };
    for (const each of [client, upstream]) each.on("error", end).on("close", end);
    upstream.pipe(client);
    client.on("data", (bytes) => {
      if (isLost || !bytes.includes("SUB ")) return void upstream.write(bytes);
      isLost = true;
      end();
    });
  });
  await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  toClose.push(async () => void proxy.close());
  return `nats://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
}

const cpusOf = (plane: ControlPlane, node: string): unknown =>
  plane.members("node").flatMap(({ name, body }) => (name === node ? [(body as { cpus?: number }).cpus] : []))[0];

const refusalOf = async (opening: Promise<unknown>): Promise<unknown> =>
  opening.then(
    () => expect.unreachable("it went well"),
    (error: unknown) => error,
  );

test("who joins while the connection is lost joins by the next one", async () => {
  const server = await serve();
  const plane = await open(await losingOnce(server.url));
  await plane.announce("node", "a", { cpus: 3 }, async () => undefined);
  const other = await open(server.url);
  await until(() => cpusOf(other, "a") === 3);
});

describe("what is asked of the server, and by whom", () => {
  test("no server, no address, and an address with a password in it are told apart", async () => {
    const nowhere = `nats://127.0.0.1:${await freePort()}`;
    expect(await refusalOf(open(nowhere))).toMatchObject({ code: "control-plane.unreachable" });
    expect(await refusalOf(open("http://localhost"))).toMatchObject({ code: "config.invalid" });
    const leaked = await refusalOf(open("nats://me:hunter2@127.0.0.1:4222"));
    expect(leaked).toMatchObject({ code: "config.invalid" });
    expect(String(leaked)).not.toContain("hunter2");
  });

  test("a wrong password is refused, the right one of the environment is taken, and neither is shown", async () => {
    const server = await serve(["--user", "treadle", "--pass", "right password"]);
    const env = (password: string) => ({ env: { TREADLE_NATS_USER: "treadle", TREADLE_NATS_PASSWORD: password } });
    const error = await refusalOf(open(server.url, env("wrong password")));
    expect(error).toMatchObject({ code: "control-plane.refused" });
    expect(String(error)).not.toMatch(/wrong password|right password/);
    expect(await refusalOf(open(server.url))).toMatchObject({ code: "control-plane.refused" });
    expect((await open(server.url, env("right password"))).isConnected).toBe(true);
  });

  test("an account that may have no more streams is told from a server that keeps nothing, with the remedy", async () => {
    const where = await folder();
    toClose.push(() => where.dispose());
    const config = `${where.path}/limited.conf`;
    const users = '[{ user: "treadle", password: "x" }]';
    await writeFile(config, `accounts { A { jetstream: { max_streams: 1 }, users: ${users} } }\n`);
    const server = await serve(["-c", config]);
    const env = { TREADLE_NATS_USER: "treadle", TREADLE_NATS_PASSWORD: "x" };
    await open(server.url, { env });
    const nats = NatsConfig.parse({ url: server.url, subjectPrefix: "another" });
    const error = await refusalOf(open(server.url, { env, nats }));
    expect(error).toMatchObject({
      code: "control-plane.refused",
      message: expect.stringMatching(/maximum number of streams reached; raise.*max_streams.*or remove streams/),
    });
    expect(String(error)).not.toContain("-js");
  });

  test("a server that wants certificates gets one of its authority, and refuses who has none or another", async () => {
    const where = await folder();
    toClose.push(() => where.dispose());
    const ours = await makeCertificates(where.path, "ours");
    const theirs = await makeCertificates(where.path, "theirs");
    const flags = ["--tlscert", ours.cert, "--tlskey", ours.key, "--tlscacert", ours.ca, "--tlsverify"];
    const server = await serve(flags);
    const dial = (tls?: LinkTls) => open(server.url, { nats: NatsConfig.parse({ url: server.url, tls }) });
    expect((await dial(ours)).isConnected).toBe(true);
    for (const tls of [undefined, theirs, { ...theirs, ca: ours.ca }]) {
      expect(await refusalOf(dial(tls))).toMatchObject({ code: expect.stringMatching(/^control-plane\./) });
    }
  });

  test("a server shows a certificate for the very address or name by which it is configured", async () => {
    const where = await folder();
    toClose.push(() => where.dispose());
    for (const [names, hosts, isTaken] of [
      ["IP:127.0.0.1", ["127.0.0.1"], true],
      ["DNS:localhost", ["127.0.0.1"], false],
      ["IP:127.0.0.2", ["127.0.0.1"], false],
      ["IP:127.0.0.1", ["127.0.0.1", "127.0.0.2"], true],
      ["DNS:localhost", ["localhost"], true],
      ["DNS:other", ["localhost"], false],
      ["IP:127.0.0.1", ["localhost"], false],
    ] as const) {
      const tls = await makeCertificates(where.path, "server", names);
      const server = await serve(["--tlscert", tls.cert, "--tlskey", tls.key]);
      const url = hosts.map((host): string => server.url.replace("127.0.0.1", host));
      const dialled = open(url, { nats: NatsConfig.parse({ url, tls: { ca: tls.ca } }) });
      const taken = await dialled.then(
        (plane) => plane.isConnected,
        (error: TreadleError) => error.code,
      );
      expect([names, hosts, taken]).toEqual([names, hosts, isTaken || expect.stringMatching(/^control-plane\./)]);
    }
  }, 120_000);

  test("more copies than there are servers are refused with the remedy", async () => {
    const server = await serve();
    const error = await refusalOf(open(server.url, { nats: NatsConfig.parse({ url: server.url, replicas: 3 }) }));
    expect(error).toMatchObject({ code: "control-plane.refused", message: expect.stringContaining("replicas") });
  });
});

describe("a server that is killed", () => {
  test("and for a while refuses whom it knew, as with old keys, gets them back, and they say once that they were away", async () => {
    const login = (pass: string) => ["--user", "u", "--pass", pass];
    const first = await serve(login("right"));
    const env = { TREADLE_NATS_USER: "u", TREADLE_NATS_PASSWORD: "right" };
    const plane = await open(first.url, { env });
    const changes: boolean[] = [];
    plane.onConnection?.((isConnected) => changes.push(isConnected));
    await first.stop("SIGKILL");
    const other = await serve(login("wrong"), first.port);
    await new Promise((resolve) => setTimeout(resolve, 2500)); // some refusals
    await other.stop("SIGKILL");
    await serve(login("right"), first.port);
    await until(() => plane.isConnected);
    expect(changes).toEqual([false, true]);
  }, 60_000);

  test("comes back with everybody still there, under the same incarnation, and nobody has left", async () => {
    const server = await serve();
    const [a, b] = [await open(server.url), await open(server.url)];
    const announcement = await a.announce("node", "one", { cpus: 2 }, (_, body) => body);
    await until(() => b.members("node").length === 1);
    const changes: MembershipChange[] = [];
    b.onMember("node", (change) => changes.push(change));
    await server.stop("SIGKILL");
    await until(() => !a.isConnected && !b.isConnected);
    await server.start();
    await until(() => a.isConnected && b.isConnected);
    const member = b.members("node")[0] as Member;
    expect(member).toMatchObject({ name: "one", incarnation: announcement.incarnation, body: { cpus: 2 } });
    await until(async () => (await b.command(member, "echo", 7, { timeoutMs: 2000 }).catch(() => 0)) === 7);
    await announcement.update({ cpus: 3 });
    await until(() => cpusOf(b, "one") === 3);
    expect(changes.filter(({ type }) => type !== "changed")).toEqual([]);
  });

  test("and has forgotten everything is told again who is there", async () => {
    const port = await freePort();
    const first = await startNatsServer({ port });
    const [a, b] = [await open(first.url), await open(first.url)];
    await a.announce("node", "one", {}, () => undefined);
    await until(() => b.members("node").length === 1);
    await first[Symbol.asyncDispose](); // with its folder
    await until(() => !a.isConnected && !b.isConnected);
    await serve([], port);
    await until(() => a.isConnected && b.isConnected);
    const c = await open(first.url);
    await until(() => c.members("node").length === 1);
    expect(b.members("node").length).toBe(1);
  });

  test("and stays away holds nobody up who leaves or closes", async () => {
    const server = await serve();
    const [a, b] = [await open(server.url), await open(server.url)];
    const run = await a.announce("run", "one", {}, () => undefined);
    await b.announce("node", "one", {}, () => undefined);
    await server.stop("SIGKILL");
    await until(() => !a.isConnected && !b.isConnected);
    await run.withdraw("it is over");
    await Promise.all([a.close(), b.close()]);
    expect([a.isConnected, b.isConnected]).toEqual([false, false]);
  });

  test("in a cluster of three is replaced by the others: members stay, what is kept is there", async () => {
    const [one, two, three] = [await freePort(), await freePort(), await freePort()];
    const [oneRoute, twoRoute, threeRoute] = [await freePort(), await freePort(), await freePort()];
    const all = [oneRoute, twoRoute, threeRoute];
    const routes = (own: number) => all.filter((port) => port !== own).map((port) => `nats://127.0.0.1:${port}`);
    const args = (name: string, own: number) => [
      ...["--name", name, "--cluster_name", "three", "--cluster", `nats://127.0.0.1:${own}`],
      ...["--routes", routes(own).join(",")],
    ];
    const servers = await Promise.all([
      serve(args("one", oneRoute), one),
      serve(args("two", twoRoute), two),
      serve(args("three", threeRoute), three),
    ]);
    const url = servers.map((server) => server.url);
    const nats = NatsConfig.parse({ url, replicas: 3 });
    // The servers elect a leader first.
    let a: ControlPlane | undefined;
    await until(async () => {
      a ??= await open(url, { nats }).catch(() => undefined);
      return a !== undefined;
    });
    const b = await open(url, { nats });
    const announcement = await (a as ControlPlane).announce("node", "one", {}, (_, body) => body);
    await b.keep("run-1", { state: "running" });
    await until(() => b.members("node").length === 1);
    const left: MembershipChange[] = [];
    b.onMember("node", (change) => change.type === "left" && left.push(change));
    await servers[0].stop("SIGKILL");
    const member = b.members("node")[0] as Member;
    await until(async () => (await b.command(member, "echo", 7, { timeoutMs: 1000 }).catch(() => 0)) === 7);
    await until(() =>
      announcement.update({ cpus: 5 }).then(
        () => true,
        () => false,
      ),
    );
    await until(async () => (await b.kept().catch(() => new Map())).has("run-1"));
    expect(left).toEqual([]);
  });
});

test("a process whose main thread computes for longer than the lease stays a member, and misses no command", async () => {
  const server = await serve();
  const options = { nats: NatsConfig.parse({ url: server.url, leaseMs: 600 }) };
  const [a, b] = [await open(server.url, options), await open(server.url, options)];
  const changes: MembershipChange[] = [];
  const announcement = await a.announce("node", "one", {}, (_, body) => body);
  await until(() => b.members("node").length === 1);
  b.onMember("node", (change) => changes.push(change));
  const asked = b.command(b.members("node")[0] as Member, "echo", "still there", { timeoutMs: 20_000 });
  const endMs = performance.now() + 2000;
  while (performance.now() < endMs) Math.sqrt(endMs);
  expect(await asked).toBe("still there");
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(changes).toEqual([]);
  await announcement.withdraw("done");
  await until(() => changes.length === 1);
});

test("whatever strangers publish on our subjects and keep in our buckets, members and commands go on", async () => {
  const server = await serve();
  const [a, b] = [await open(server.url), await open(server.url)];
  const heard: unknown[] = [];
  b.subscribe("log.run-1", (body) => heard.push(body));
  const one = await a.announce("node", "one", { cpus: 2 }, (_, body) => body);
  await until(() => b.members("node").length === 1);
  const stranger = await connect({ port: server.port });
  toClose.push(() => stranger.close());
  const subject = fc.constantFrom(
    "treadle.beat.node.one",
    "treadle.beat.run.two",
    "treadle.beat.robot.x",
    `treadle.command.node.one.${one.incarnation}`,
    "treadle.topic.log.run-1",
    "treadle.probe",
    "treadle.entry.node.two",
    "treadle.entry.robot.x",
    "treadle.entry.node",
    "treadle.ask.node.one",
    "$KV.treadle-records.run-1",
  );
  const body = fc.oneof(
    fc.uint8Array({ maxLength: 200 }),
    fc.json({ maxDepth: 3 }).map((text) => Buffer.from(text)),
    fc
      .record({ incarnation: fc.oneof(fc.integer(), fc.string()), body: fc.jsonValue(), method: fc.string() })
      .map((value) => Buffer.from(JSON.stringify(value))),
  );
  for (const [where, bytes] of fc.sample(fc.tuple(subject, body), 400)) stranger.publish(where, bytes);
  await stranger.flush();
  const member = (b.members("node").find(({ name }) => name === "one") ?? expect.unreachable("it left")) as Member;
  expect(await b.command(member, "echo", { fine: true }, { timeoutMs: 10_000 })).toEqual({ fine: true });
  expect([...(await b.kept()).keys()]).toEqual(expect.any(Array));
  await one.update({ cpus: 3 });
  await until(() => cpusOf(b, "one") === 3);
  const c = await open(server.url);
  await until(() => c.members("node").some(({ name }) => name === "one"));
});

test("records are listed although somebody writes to them all the time", async () => {
  const server = await serve();
  const [writing, reading] = [await open(server.url), await open(server.url)];
  for (const name of ["busy", "other"]) await writing.keep(name, { name });
  const connection = await connect({ servers: server.url });
  let isOver = false;
  const write = (async () => {
    while (!isOver) {
      for (let i = 0; i < 20; i++) connection.publish("$KV.treadle-records.busy", JSON.stringify({ name: "busy" }));
      await connection.flush();
    }
  })();
  for (let looks = 0; looks < 10; looks++)
    expect([...(await reading.kept()).keys()].toSorted()).toEqual(["busy", "other"]);
  isOver = true;
  await write;
  await connection.close();
});
