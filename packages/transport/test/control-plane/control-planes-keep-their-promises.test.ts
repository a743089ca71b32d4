import { type ControlPlane, type Member, type MembershipChange, NatsConfig, TreadleError } from "@treadle/contracts";
import { localControlPlanes, openNatsControlPlane } from "@treadle/transport";
import { type NatsServer, startNatsServer } from "@treadle/transport/testing";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { until } from "../support/until.ts";

/** Every implementation of the port is one of these; `connect` is what a further process does. */
type World = { connect(): Promise<ControlPlane> };

const noHandler = () => undefined;
const timeoutMs = 5000;

function contract(makeWorld: () => World): void {
  let world: World;
  const open: ControlPlane[] = [];
  const connect = async (): Promise<ControlPlane> => {
    const plane = await world.connect();
    open.push(plane);
    return plane;
  };
  beforeEach(() => {
    world = makeWorld();
  });
  afterEach(async () => {
    await Promise.all(open.splice(0).map((plane) => plane.close()));
  });

  const names = (members: readonly Member[]) => members.map(({ name }) => name).sort();

  test("who announces itself is seen by those that are there and those that come, until it withdraws", async () => {
    const [a, b] = [await connect(), await connect()];
    const changes: MembershipChange[] = [];
    b.onMember("node", (change) => changes.push(change));
    const announcement = await a.announce("node", "one", { cpus: 2 }, noHandler);
    await a.announce("run", "one", {}, noHandler);
    await until(() => b.members("node").length === 1);
    const c = await connect();
    expect(names(c.members("node"))).toEqual(["one"]);
    expect(c.members("node")[0]).toMatchObject({ kind: "node", name: "one", body: { cpus: 2 } });
    await announcement.update({ cpus: 3 });
    await until(() => changes.length === 2);
    await announcement.withdraw("it drains");
    await until(() => changes.length === 3 && c.members("node").length === 0);
    expect(changes.map(({ type }) => type)).toEqual(["joined", "changed", "left"]);
    expect(changes[1]?.member.body).toEqual({ cpus: 3 });
    expect(changes[2]).toMatchObject({ reason: "it drains", member: { name: "one" } });
    expect(names(c.members("run"))).toEqual(["one"]);
  });

  test("a process that closes its plane leaves with everything that it announced", async () => {
    const [a, b] = [await connect(), await connect()];
    await a.announce("node", "one", {}, noHandler);
    await a.announce("node", "two", {}, noHandler);
    await until(() => b.members("node").length === 2);
    await a.close();
    await until(() => b.members("node").length === 0);
  });

  test("the later of two of one name counts: the earlier is told, and its incarnation is gone", async () => {
    const [a, b, c] = [await connect(), await connect(), await connect()];
    const changes: MembershipChange[] = [];
    c.onMember("node", (change) => changes.push(change));
    const first = await a.announce("node", "one", { at: "a" }, () => "a");
    const replaced = new Promise<void>((resolve) => first.onReplaced(resolve));
    await until(() => c.members("node").length === 1);
    const old = c.members("node")[0] as Member;
    const second = await b.announce("node", "one", { at: "b" }, () => "b");
    await replaced;
    await until(() => c.members("node")[0]?.incarnation === second.incarnation);
    expect(second.incarnation).toBeGreaterThan(first.incarnation);
    expect(changes.map(({ type, member }) => [type, member.incarnation])).toEqual([
      ["joined", first.incarnation],
      ["left", first.incarnation],
      ["joined", second.incarnation],
    ]);
    await expect(c.command(c.members("node")[0] as Member, "where", {}, { timeoutMs })).resolves.toBe("b");
    await expect(c.command(old, "where", {}, { timeoutMs })).rejects.toMatchObject({ code: "node.lost" });
  });

  test.each(["node", "run", "pool"] as const)(
    "CP1: a %s that comes back has a higher incarnation than before",
    async (kind) => {
      const [a, b] = [await connect(), await connect()];
      const first = await a.announce(kind, "one", {}, noHandler);
      await first.withdraw("it drains");
      const second = await b.announce(kind, "one", {}, noHandler);
      expect(second.incarnation).toBeGreaterThan(first.incarnation);
      await second.withdraw("it drains, too");
      const third = await a.announce(kind, "one", {}, noHandler);
      expect(third.incarnation).toBeGreaterThan(second.incarnation);
    },
  );

  test("commands are answered with what the handler returns or throws, and nothing by those that are gone", async () => {
    const [a, b] = [await connect(), await connect()];
    const announcement = await a.announce("node", "one", {}, async (method, body) => {
      if (method === "fail") {
        throw new TreadleError("node.unavailable", "not today", {
          details: { why: 1 },
          origin: { worker: "rollout/0", logTail: ["the last line"] },
        });
      }
      if (method === "hang") return new Promise(() => {});
      return { method, body };
    });
    await until(() => b.members("node").length === 1);
    const member = b.members("node")[0] as Member;
    const answers = await Promise.all(
      Array.from({ length: 50 }, (_, i) => b.command(member, "echo", { i, text: "ü\n" }, { timeoutMs })),
    );
    expect(answers).toEqual(answers.map((_, i) => ({ method: "echo", body: { i, text: "ü\n" } })));
    await expect(b.command(member, "fail", {}, { timeoutMs })).rejects.toMatchObject({
      code: "node.unavailable",
      disposition: "misuse",
      message: "not today",
      details: { why: 1 },
      origin: { worker: "rollout/0", logTail: ["the last line"] },
    });
    await expect(b.command(member, "hang", {}, { timeoutMs: 50 })).rejects.toMatchObject({ code: "call.timeout" });
    await announcement.withdraw("it drains");
    await expect(b.command(member, "echo", {}, { timeoutMs })).rejects.toMatchObject({ code: "node.lost" });
  });

  test("what is sent is the receiver's own copy", async () => {
    const a = await connect();
    const body = { list: [1] };
    await a.announce("node", "one", body, (_, received) => {
      (received as { list: number[] }).list.push(2);
      return received;
    });
    await until(() => a.members("node").length === 1);
    const argument = { list: [0] };
    const answer = await a.command(a.members("node")[0] as Member, "add", argument, { timeoutMs });
    body.list.push(3);
    expect({ answer, argument }).toEqual({ answer: { list: [0, 2] }, argument: { list: [0] } });
    expect(a.members("node")[0]?.body).toEqual({ list: [1] });
  });

  test("events reach those who listen to their topic, in order, and nobody after they stopped", async () => {
    const [a, b] = [await connect(), await connect()];
    const heard: unknown[] = [];
    const all: unknown[] = [];
    const stop = b.subscribe("log.run-1", (body) => heard.push(body));
    a.subscribe("log.*", (body) => all.push(body));
    await until(() => {
      a.publish("log.run-1", "are you there");
      return heard.length > 0 && all.length > 0;
    });
    const from = heard.length;
    for (let i = 0; i < 100; i++) a.publish("log.run-1", { i });
    a.publish("log.run-2", { i: "other" });
    a.publish("heartbeats.run-1", { i: "another topic" });
    await until(() => all.some((body) => (body as { i?: unknown }).i === "other"));
    await until(() => heard.some((body) => (body as { i?: unknown }).i === 99));
    const numbered = heard.slice(from).filter((body) => typeof body === "object");
    expect(numbered).toEqual(Array.from({ length: 100 }, (_, i) => ({ i })));
    stop();
    const count = heard.length;
    a.publish("log.run-1", { i: "late" });
    await until(() => all.some((body) => (body as { i?: unknown }).i === "late"));
    expect(heard.length).toBe(count);
  });

  test("what is kept is there for whoever comes later, the newest of each name", async () => {
    const a = await connect();
    await a.keep("run-1", { state: "running" });
    await a.keep("run-2", { state: "failed" });
    await a.keep("run-1", { state: "finished" });
    await a.close();
    const b = await connect();
    expect(Object.fromEntries(await b.kept())).toEqual({
      "run-1": { value: { state: "finished" } },
      "run-2": { value: { state: "failed" } },
    });
  });
}

describe("within one process", () => {
  contract(() => {
    const planes = localControlPlanes();
    return { connect: async () => planes.connect() };
  });
});

describe("over NATS", () => {
  let server: NatsServer;
  beforeAll(async () => {
    server = await startNatsServer();
  });
  afterAll(() => server[Symbol.asyncDispose]());
  let project = 0;
  contract(() => {
    const nats = NatsConfig.parse({ url: server.url, subjectPrefix: `project-${++project}` });
    return { connect: () => openNatsControlPlane({ nats, name: "test" }) };
  });
});
