import { randomBytes } from "node:crypto";
import { connect, createServer, type Socket } from "node:net";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { type Link, NatsConfig, type TreadleError } from "@treadle/contracts";
import { connectStranger, freePort, type NatsServer, nobodyListens, startNatsServer } from "@treadle/transport/testing";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { openEndpoint, openRelay } from "../src/index.ts";
import { Openings, proveOpening } from "../src/relay/openings.ts";
import { TunnelSeal } from "../src/relay/tunnel-seal.ts";
import { folder, runId, token } from "./support/endpoints.ts";
import { closed, inbox, type LinkPair, linkContract } from "./support/link-contract.ts";
import { until } from "./support/until.ts";

let server: NatsServer;
const toClose: (() => Promise<unknown>)[] = [];
beforeAll(async () => {
  server = await startNatsServer();
});
afterEach(async () => {
  for (const close of toClose.splice(0).reverse()) await close();
});
afterAll(() => server[Symbol.asyncDispose]());

const limits = { maxFrameBytes: 1024 * 1024 };
let numRuns = 0;

/** Two machines, as far as sockets go: each relay serves a folder of its own. */
async function machines(url = server.url) {
  const [here, there] = [await folder(), await folder()];
  const nats = NatsConfig.parse({ url });
  const run = `run-${++numRuns}`;
  const paths = { left: join(here.path, "relay"), right: join(there.path, "relay") };
  const relays = await Promise.all(
    (["left", "right"] as const).map((member) =>
      openRelay({ nats, runId: run, token, member, path: paths[member], ports: {} }),
    ),
  );
  return {
    paths,
    folder: there.path,
    async dispose() {
      await Promise.all(relays.map((relay) => relay.close()));
      await Promise.all([here.dispose(), there.dispose()]);
    },
  };
}

async function joinedByRelay(url?: string, target = "s"): Promise<LinkPair & { relayed: string[] }> {
  const world = await machines(url);
  const relayed: string[] = [];
  const right = await openEndpoint({
    name: "right",
    runId,
    token,
    unixPath: join(world.folder, target),
    segments: false,
    limits,
  });
  const left = await openEndpoint({
    name: "left",
    runId,
    token,
    segments: false,
    limits,
    relayPath: world.paths.left,
    onRelayed: (address, cause) => relayed.push(`${address}: ${cause.message}`),
  });
  const accepted = new Promise<Link>((resolve) => right.onLink(resolve));
  const nobody = `tcp:127.0.0.1:${await freePort()}`;
  const dialled = await left.connect([nobody, `relay:right/${target}`], { expect: "right" });
  return {
    left: dialled,
    right: await accepted,
    relayed,
    async dispose() {
      await Promise.all([left.close(), right.close()]);
      await world.dispose();
    },
  };
}

linkContract("by way of NATS", joinedByRelay, { copies: true });

test("a relay is what is left when no address answers, and says why", async () => {
  const pair = await joinedByRelay();
  toClose.push(() => pair.dispose());
  expect(pair.relayed).toEqual([expect.stringMatching(/^relay:right\/s: no process answers at 'tcp:/)]);
});

test("a worker of a component whose name has a dot is reached, too", async () => {
  const pair = await joinedByRelay(server.url, "rollout.v2-0-0");
  toClose.push(() => pair.dispose());
  const received = inbox(pair.right);
  pair.left.send("hello");
  await received.atLeast(1);
});

test("TU7: what a stranger answers to an opening, or says in the server's place, is passed over", async () => {
  const stranger = await connectStranger(server.url);
  toClose.push(() => stranger.close());
  stranger.subscribe("treadle.relay.*.open.*", {
    callback: (_, message) => {
      stranger.publish(message.reply as string, new Uint8Array(), { headers: nobodyListens() });
      for (const word of ["refused", "open", ""]) message.respond(word);
    },
  });
  await stranger.flush();
  for (let i = 0; i < 5; i++) {
    const pair = await joinedByRelay();
    await pair.dispose();
  }
});

test("a relay that is still starting is waited for", async () => {
  const [here, there] = [await folder(), await folder()];
  const right = await openEndpoint({ name: "right", runId, token, unixPath: join(there.path, "s") });
  toClose.push(() => right.close());
  right.onLink(() => {});
  const path = join(here.path, "relay");
  const left = await openEndpoint({ name: "left", runId, token, relayPath: path });
  toClose.push(() => left.close());
  const dialled = left.connect("relay:right/s", { expect: "right" });
  const isRefused = await Promise.race([
    dialled.then(
      () => false,
      () => true,
    ),
    delay(200),
  ]);
  expect(isRefused).toBeUndefined();
  const nats = NatsConfig.parse({ url: server.url });
  const run = `run-${++numRuns}`;
  for (const [member, at] of [
    ["right", join(there.path, "relay")],
    ["left", path],
  ] as const) {
    const relay = await openRelay({ nats, runId: run, token, member, path: at, ports: {} });
    toClose.push(() => relay.close());
  }
  expect((await dialled).remote).toBe("right");
});

test("whom nobody serves cannot be reached, and a line that names nobody is refused", async () => {
  const world = await machines();
  toClose.push(() => world.dispose());
  const left = await openEndpoint({ name: "left", runId, token, relayPath: world.paths.left });
  toClose.push(() => left.close());
  for (const address of ["relay:right/missing", "relay:nobody/s", "relay:right/toString"]) {
    await expect(left.connect(address)).rejects.toMatchObject({ code: "link.refused" });
  }
  for (const line of ["right ../s\n", "x".repeat(1000), "\n"]) {
    const socket = connect(world.paths.left);
    const ended = new Promise((resolve) => socket.once("close", resolve));
    socket.on("error", () => {});
    socket.write(line);
    await ended;
  }
  const plain = await openEndpoint({ name: "plain", runId, token });
  toClose.push(() => plain.close());
  const error = (await plain.connect("relay:right/s").catch((cause) => cause)) as TreadleError;
  expect(error).toMatchObject({ code: "link.refused", message: expect.stringContaining("no relay") });
});

test("TU2: a side that does not read stops the sender; what was sent then arrives whole and in order", async () => {
  const world = await machines();
  toClose.push(() => world.dispose());
  let accepted: Socket | undefined;
  const listener = createServer((socket) => {
    socket.pause();
    accepted = socket;
  });
  await new Promise<void>((resolve) => listener.listen(join(world.folder, "raw"), resolve));
  toClose.push(() => new Promise((resolve) => listener.close(resolve)));
  const socket = connect(world.paths.left);
  socket.on("error", () => {});
  socket.write("right raw\n");
  await until(() => accepted !== undefined);
  const sent = randomBytes(24 * 1024 * 1024);
  socket.end(sent);
  let last = -1;
  // It stands still with most of it unsent, for as long as nobody reads.
  await until(async () => {
    const before = last;
    last = socket.bytesWritten - socket.writableLength;
    await new Promise((resolve) => setTimeout(resolve, 500));
    return last > 0 && last === before;
  });
  expect(socket.writableLength).toBeGreaterThan(8 * 1024 * 1024);
  const parts: Buffer[] = [];
  const ended = new Promise((resolve) => accepted?.once("end", resolve));
  accepted?.on("data", (bytes) => parts.push(bytes));
  accepted?.resume();
  await ended;
  expect(Buffer.concat(parts).equals(sent)).toBe(true);
  accepted?.destroy();
}, 180_000);

test("TU1, TU4: a NATS server that goes away ends the link on both sides", async () => {
  await using other = await startNatsServer();
  const pair = await joinedByRelay(other.url);
  toClose.push(() => pair.dispose());
  const received = inbox(pair.right);
  pair.left.send("hello");
  await received.atLeast(1);
  const ends = Promise.all([closed(pair.left), closed(pair.right)]);
  await other.stop("SIGKILL");
  for (const cause of await ends) expect(cause).toMatchObject({ code: "link.closed" });
}, 180_000);

test("TU5: without the run's token a tunnel's bytes are neither read nor changed, nor said again", async () => {
  const stranger = await connectStranger(server.url);
  toClose.push(() => stranger.close());
  const heard: { subject: string; data: Uint8Array; reply: string | undefined }[] = [];
  stranger.subscribe("treadle.relay.>", {
    callback: (_, { subject, data, reply }) => void heard.push({ subject, data, reply }),
  });
  await stranger.flush();
  const pair = await joinedByRelay();
  toClose.push(() => pair.dispose());
  const secret = "what only the two of them may read ".repeat(100);
  const received = inbox(pair.right);
  pair.left.send({ secret });
  await until(() => received.messages.length === 1);
  const tunnel = heard.filter(({ subject }) => subject.includes(".tunnel."));
  const sides = new Set(tunnel.map(({ subject }) => subject.at(-1)));
  expect(sides).toEqual(new Set(["a", "b"]));
  expect(Buffer.concat(heard.map(({ data }) => data)).toString("latin1")).not.toContain("what only the two");
  // Changed, again, made by others, and ends of all kinds: the link neither ends nor hears of them.
  for (const { subject, data } of [...tunnel]) {
    const changed = Uint8Array.from(data);
    changed[changed.length - 20] = (changed[changed.length - 20] ?? 0) ^ 1;
    const forged = new TunnelSeal("a token that is of another run", subject.split(".").at(-2) ?? "", "a");
    for (const bytes of [data, changed, forged.seal(Uint8Array.of(3, 0, 0, 0, 0, 0, 0, 0, 0)), new Uint8Array(9)]) {
      stranger.publish(subject, bytes);
    }
  }
  // An opening that was heard opens nothing a second time, and none opens for another.
  const [opening] = heard.filter(({ subject }) => subject.includes(".open."));
  if (opening === undefined) throw new Error("no opening was heard");
  const again = await stranger.request(opening.subject, opening.data, {
    noMux: true,
    reply: answerSubject(),
    timeout: 5000,
  });
  expect(again.string()).toBe("refused");
  const { proof: _, ...said } = JSON.parse(Buffer.from(opening.data).toString()) as { proof: string; tunnel: string };
  for (const proof of [undefined, "0".repeat(64)]) {
    const text = JSON.stringify({ ...said, tunnel: crypto.randomUUID(), ...(proof === undefined ? {} : { proof }) });
    const answer = await stranger.request(opening.subject, text, {
      noMux: true,
      reply: answerSubject(),
      timeout: 5000,
    });
    expect(answer.string()).toBe("refused");
  }
  await stranger.flush();
  pair.left.send({ after: 1 });
  pair.right.send({ back: 1 });
  await until(() => received.messages.length === 2);
  expect(received.messages[1]).toEqual({ after: 1 });
});

const answerSubject = () => `_INBOX.answer.${crypto.randomUUID()}`;

test("TU6: of one member no more tunnels are open at once than its share, each once, and none for who has no token", () => {
  const openings = new Openings(
    { token, subject: "treadle.relay.r", member: "right" },
    { maxTotal: 5, maxFrom: 3, maxSeen: 100 },
  );
  const openingOf = (from: string, secret = token, to = "right", subject = "treadle.relay.r") => {
    const asked = { from, tunnel: crypto.randomUUID(), target: "s" };
    return { ...asked, proof: proveOpening(secret, { ...asked, to, subject }) };
  };
  const first = openingOf("left");
  expect(openings.admit(first)).toBe(true);
  expect(openings.admit(first)).toBe(false);
  expect(openings.admit(openingOf("left", "a token that is of another run"))).toBe(false);
  expect(openings.admit(openingOf("left", token, "another"))).toBe(false);
  for (const subject of ["other.relay.r", "treadle.relay.s"])
    expect(openings.admit(openingOf("left", token, "right", subject))).toBe(false);
  expect(openings.admit({ ...openingOf("left"), from: "other" })).toBe(false);
  expect([1, 2, 3].map(() => openings.admit(openingOf("left")))).toEqual([true, true, false]);
  expect([1, 2, 3].map(() => openings.admit(openingOf("other")))).toEqual([true, true, false]); // of all
  openings.ended("left");
  expect(openings.admit(first)).toBe(false);
  expect(openings.admit(openingOf("left"))).toBe(true);
});
