/**
 * A client of an account that everybody shares, without a key of `trust`, beside members that have theirs: it keeps nobody out,
 * says nothing in a member's place, and answers no question.
 */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ClusterConfig, type ControlPlane, NatsConfig, type TreadleError } from "@treadle/contracts";
import { openNatsControlPlane } from "@treadle/transport";
import { connectStranger, type NatsServer, nobodyListens, startNatsServer } from "@treadle/transport/testing";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { clusterValues, initCluster } from "../../packages/cli/src/cluster-folder.ts";
import { Nodes } from "../../packages/runtime/src/runner/nodes/nodes.ts";
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

test("TR4: what a stranger says in the server's place, that nobody listens, ends no question to a member that is there", async () => {
  const [runner, node] = [await planeOf("runner"), await planeOf("node")];
  let forged = (): void => {};
  const answered = new Promise<void>((resolve) => {
    forged = resolve;
  });
  const announced = await node.announce("node", "d", {}, async () => {
    await answered;
    await new Promise((resolve) => setTimeout(resolve, 1000)); // longer than a question waits for a sign of life
    return "genuine";
  });
  const member = await until(() => runner.members("node").find(({ name }) => name === "d"), "d");
  const listening = stranger.subscribe("treadle.command.node.d.*", {
    callback: (_, message) => {
      stranger.publish(message.reply as string, new Uint8Array(), { headers: nobodyListens() });
      void stranger.flush().then(forged);
    },
  });
  await stranger.flush();
  expect(await runner.command(member, "ping", {}, { timeoutMs: 60_000 })).toBe("genuine");
  await announced.withdraw("it leaves");
  expect(await runner.command(member, "ping", {}, { timeoutMs: 5000 }).catch((e: TreadleError) => e.code)).toBe(
    "node.lost",
  );
  listening.unsubscribe();
  await node.close();
  await runner.close();
});

test("TR4: a member that is slow is slow, whatever others answer meanwhile", async () => {
  const [runner, node] = [await planeOf("runner"), await planeOf("node")];
  await node.announce("node", "e", {}, () => new Promise(() => {}));
  const member = await until(() => runner.members("node").find(({ name }) => name === "e"), "e");
  stranger.subscribe("treadle.command.node.e.*", {
    callback: (_, message) =>
      stranger.publish(message.reply as string, JSON.stringify({ error: { message: "forged" } })),
  });
  await stranger.flush();
  await expect(runner.command(member, "ping", {}, { timeoutMs: 1000 })).rejects.toMatchObject({
    code: "call.timeout",
    cause: { code: "control-plane.untrusted" },
  });
  await node.close();
  await runner.close();
});

describe("TR6: what a process that is gone has said, said again with its beats,", () => {
  /** Hears a member's own words, and repeats them once it is told to. */
  function recorder(subject: string) {
    const heard = new Map<string, string>();
    const listening = ["entry", "beat"].map((kind) =>
      stranger.subscribe(`treadle.${kind}.${subject}`, {
        callback: (_, message) => {
          const text = message.string();
          if (!text.includes("goodbye") && !heard.has(kind)) heard.set(kind, text);
        },
      }),
    );
    let timer: NodeJS.Timeout | undefined;
    const say = () => {
      for (const [kind, text] of heard) stranger.publish(`treadle.${kind}.${subject}`, text);
    };
    return {
      ready: () => until(() => heard.size === 2, "what the member says"),
      repeat: () => {
        timer = setInterval(say, 50);
      },
      stop: () => {
        clearInterval(timer);
        for (const each of listening) each.unsubscribe();
      },
    };
  }

  test("keeps the next agent of its name from nothing", async () => {
    const project = await mkdtemp(join(tmpdir(), "treadle-project-"));
    await writeFile(join(project, "worker.ts"), "");
    const said = recorder("node.a");
    await stranger.flush();
    const first = await planeOf("node");
    const old = await startNodeService(first, project, 60_000);
    await said.ready();
    await old.close("started again");
    await first.close();
    said.repeat();
    const second = await planeOf("node");
    try {
      await until(() => second.members("node").some(({ name }) => name === "a"), "the one that is gone");
      const service = await startNodeService(second, project, 60_000);
      expect(service.incarnation).toBeGreaterThan(old.incarnation);
      // One that is there keeps its place.
      const third = await planeOf("node");
      await expect(startNodeService(third, project, 60_000)).rejects.toMatchObject({ code: "node.name-taken" });
      await third.close();
      await service.close("over");
    } finally {
      said.stop();
      await second.close();
      await rm(project, { recursive: true, force: true });
    }
  }, 120_000);

  test("keeps nobody from resuming its run", async () => {
    const said = recorder("run.run-1");
    await stranger.flush();
    const nodesOf = (plane: ControlPlane) =>
      new Nodes({ plane, cluster: ClusterConfig.parse({}), projectRoot: folder, runId: "run-1" });
    const first = nodesOf(await planeOf("runner"));
    await first.claim("run-1");
    const late = nodesOf(await planeOf("runner"));
    await expect(late.claim("run-1")).rejects.toMatchObject({ code: "run.locked" });
    await late.close();
    await said.ready();
    await first.close();
    said.repeat();
    const second = nodesOf(await planeOf("runner"));
    try {
      await second.claim("run-1");
    } finally {
      said.stop();
      await second.close();
    }
  }, 120_000);
});
