/**
 * A client of an account that everybody shares, without a key of `trust`, beside members that have theirs: it keeps nobody out,
 * says nothing in a member's place, and answers no question.
 */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ControlPlane, NatsConfig } from "@treadle/contracts";
import { openNatsControlPlane } from "@treadle/transport";
import { connectStranger, type NatsServer, startNatsServer } from "@treadle/transport/testing";
import { afterAll, beforeAll, expect, test } from "vitest";
import { clusterValues, initCluster } from "../../packages/cli/src/cluster-folder.ts";
import { until } from "../support/cluster.ts";
import { startNodeService } from "../support/node-service.ts";

let folder: string;
let server: NatsServer;
let stranger: Awaited<ReturnType<typeof connectStranger>>;

async function planeOf(role: "runner" | "node"): Promise<ControlPlane> {
  const values = await clusterValues(folder, { role });
  return openNatsControlPlane({
    nats: NatsConfig.parse({ ...values, url: server.url }),
    name: role,
    keepsRecords: role === "runner",
  });
}

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-keys-"));
  await initCluster(folder, { servers: ["127.0.0.1:4222"] }, []);
  server = await startNatsServer();
  stranger = await connectStranger(server.url);
});
afterAll(async () => {
  await stranger.close();
  await server[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
});

test("NS5, CP5: what no key has signed keeps neither an agent nor anybody else from a name", async () => {
  const project = await mkdtemp(join(tmpdir(), "treadle-project-"));
  await writeFile(join(project, "worker.ts"), "");
  const plane = await planeOf("node");
  const say = () => {
    stranger.publish("treadle.entry.node.a", JSON.stringify({ incarnation: 5, version: 0, body: {} }));
    stranger.publish("treadle.beat.node.a", JSON.stringify({ incarnation: 5, version: 0 }));
  };
  const beat = setInterval(say, 50);
  try {
    const forged = await until(() => plane.members("node").find(({ name }) => name === "a"), "the forged member");
    expect(forged).toMatchObject({ isUntrusted: true });
    const service = await startNodeService(plane, project, 60_000);
    const runner = await planeOf("runner");
    const genuine = await until(() => runner.members("node").find((each) => !each.isUntrusted), "the genuine one");
    expect(genuine).toMatchObject({ name: "a", incarnation: service.incarnation });
    await service.close("over");
    await runner.close();
  } finally {
    clearInterval(beat);
    await plane.close();
    await rm(project, { recursive: true, force: true });
  }
});

test("M4, TR1: what a member has said before does not come back, whatever version it is sent with", async () => {
  const heard: string[] = [];
  stranger.subscribe("treadle.entry.node.b", { callback: (_, message) => void heard.push(message.string()) });
  await stranger.flush();
  const runner = await planeOf("runner");
  const node = await planeOf("node");
  const seen: unknown[] = [];
  runner.onMember("node", ({ member }) => {
    if (member.name === "b") seen.push(member.body);
  });
  const said = await node.announce("node", "b", { at: "first" }, () => undefined);
  const first = await until(() => heard[0], "the entry");
  await said.update({ at: "second" });
  await until(() => seen.some((body) => (body as { at?: string }).at === "second") || undefined, "the newer entry");
  const before = seen.length;
  stranger.publish("treadle.entry.node.b", first);
  stranger.publish("treadle.entry.node.b", JSON.stringify({ ...JSON.parse(first), version: 1e6 }));
  await stranger.flush();
  await said.update({ at: "third" }); // heard after what was sent again
  await until(() => seen.some((body) => (body as { at?: string }).at === "third") || undefined, "the newest entry");
  expect(seen.slice(before)).toEqual([{ at: "third" }]);
  await node.close();
  await runner.close();
});

test("TR4: whoever hears a question answers it first, and the member's answer is the one that counts", async () => {
  const runner = await planeOf("runner");
  const node = await planeOf("node");
  let forged = (): void => {};
  const answered = new Promise<void>((resolve) => {
    forged = resolve;
  });
  await node.announce("node", "c", {}, async () => {
    await answered;
    return "genuine";
  });
  const member = await until(() => runner.members("node").find(({ name }) => name === "c"), "c");
  stranger.subscribe("treadle.command.node.c.*", {
    callback: (_, message) => {
      stranger.publish(message.reply as string, JSON.stringify({ error: { message: "forged" } }));
      stranger.publish(message.reply as string, JSON.stringify({ box: "AAAA" }));
      void stranger.flush().then(forged);
    },
  });
  await stranger.flush();
  expect(await runner.command(member, "ping", {}, { timeoutMs: 60_000 })).toBe("genuine");
  await node.close();
  await runner.close();
});
