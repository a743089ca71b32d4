import { once } from "node:events";
import net from "node:net";
import { type KeptItem, type Link, runProtocol, TreadleError } from "@treadle/contracts";
import { createPeer, type Endpoint, encodeItem, openEndpoint } from "@treadle/transport";
import { afterEach, expect, test } from "vitest";
import { DistantPayloads } from "../../src/author/channel/distant-payloads.ts";
import { dialRunner, untilAnswered } from "../../src/author/dial.ts";
import { PeerLinks } from "../../src/worker/peer-links.ts";

const link = { remote: "runner" } as Link;
const refused = (cause?: Error) => new TreadleError("link.refused", "closed during the handshake", { cause });
const nobody = Object.assign(new Error("connect ECONNREFUSED"), { code: "ECONNREFUSED" });

/** Fails as told, then answers; with how often it was asked. */
function endpoint(failures: readonly Error[]) {
  let times = 0;
  const connect = async () => {
    const failure = failures[times++];
    if (failure !== undefined) throw failure;
    return link;
  };
  return { endpoint: { connect }, times: () => times };
}

test("a runner whose door is crowded is dialled until it answers", async () => {
  const { endpoint: crowded, times } = endpoint([refused(), refused(new Error("reset")), refused()]);
  expect(await dialRunner(crowded, ["tcp:a:1"])).toBe(link);
  expect(times()).toBe(4);
});

test("where another relay may open, that nobody listens yet does not end it", async () => {
  const { endpoint: closed } = endpoint([refused(refused(nobody))]);
  expect(await dialRunner(closed, ["tcp:a:1", "relay:runner/runner"])).toBe(link);
});

test.each([
  ["nobody listens there", refused(nobody)],
  ["it is another run's", new TreadleError("link.unauthorized", "no token")],
])("it is given up at once when %s", async (_, failure) => {
  const { endpoint: none, times } = endpoint([failure]);
  await expect(dialRunner(none, ["tcp:a:1"])).rejects.toBe(failure);
  expect(times()).toBe(1);
});

test("no try begins after its time, and the last failure is told", async () => {
  const failures = Array.from({ length: 9 }, () => refused());
  const { endpoint: crowded, times } = endpoint(failures);
  const patience = { isWorthAgain: () => true, timeoutMs: 200 };
  const dialling = untilAnswered(() => crowded.connect(), patience);
  await expect(dialling).rejects.toBe(await dialling.catch((error: unknown) => error));
  expect(times()).toBeGreaterThan(1);
  expect(times()).toBeLessThan(failures.length);
});

const toClose: (() => Promise<unknown> | unknown)[] = [];
afterEach(async () => {
  for (const close of toClose.splice(0).reverse()) await close();
});

const run = { runId: "run-1", token: "a token that only this run has", segments: false } as const;

async function open(name: string, options: { tcp?: { port: number } } = {}): Promise<Endpoint> {
  const opened = await openEndpoint({ name, ...run, ...options });
  toClose.push(() => opened.close());
  return opened;
}

/** An address at which the first that dial are sent away, at once or after a word; the next reach whoever listens behind. */
async function crowdedDoor(behind: Endpoint, numSentAway: number) {
  const port = Number(behind.addresses[0]?.split(":").at(-1));
  let numDials = 0;
  const door = net.createServer((near) => {
    near.on("error", () => {});
    if (++numDials <= numSentAway) {
      if (numDials % 2 === 0) near.once("data", () => near.resetAndDestroy());
      else near.destroy();
      return;
    }
    const far = net.connect(port, "127.0.0.1").on("error", () => near.destroy());
    near.pipe(far).pipe(near);
    toClose.push(() => [near, far].map((socket) => socket.destroy()));
  });
  door.listen(0, "127.0.0.1");
  await once(door, "listening");
  toClose.push(() => door.close());
  return { address: `tcp:127.0.0.1:${(door.address() as net.AddressInfo).port}`, numDials: () => numDials };
}

test("WL1: a worker that many others ask is dialled until it lets this one in, where the runner says that it is by then", async () => {
  const there = await open("maker/1", { tcp: { port: 0 } });
  there.onLink((accepted) => createPeer(accepted, runProtocol).handle("message", () => {}));
  const door = await crowdedDoor(there, 4);
  const asked: unknown[] = [];
  const links = new PeerLinks({
    endpoint: await open("maker/0"),
    resolve: async (request) => {
      asked.push(request);
      return { addresses: [door.address] };
    },
    accept: () => {},
    startTimeoutMs: 60_000,
  });
  const [peer, same] = await Promise.all([links.callable("maker/1"), links.connect("maker/1")]);
  expect(same).toBe(peer);
  await peer.request("message", { from: "maker/0", incarnation: 0, tag: "", value: 1 });
  expect(door.numDials()).toBe(5);
  expect(asked.length).toBe(5 + 1);
});

test("WH7: what takes the place of one that died before it was reached is called once it is ready, and not before", async () => {
  const there = await open("maker/1", { tcp: { port: 0 } });
  there.onLink((accepted) => createPeer(accepted, runProtocol).handle("message", () => {}));
  const successor = { isReady: () => {}, isAskedFor: () => {} };
  const isReady = new Promise<void>((resolve) => Object.assign(successor, { isReady: resolve }));
  const isAskedFor = new Promise<void>((resolve) => Object.assign(successor, { isAskedFor: resolve }));
  let hasDied = false;
  const links = new PeerLinks({
    endpoint: await open("maker/0"),
    resolve: async ({ ready = false }) => {
      if (!ready)
        hasDied = true; // where it is asked for, it is not the one any more that was ready
      else if (hasDied) {
        successor.isAskedFor();
        await isReady;
      }
      return { addresses: there.addresses };
    },
    accept: () => {},
    startTimeoutMs: 60_000,
  });
  let isCallable = false;
  const calling = links.callable("maker/1").then(() => {
    isCallable = true;
  });
  await Promise.race([isAskedFor, calling]);
  expect(isCallable).toBe(false);
  successor.isReady();
  await calling;
});

test("WL1: a worker at whose address nobody listens is not dialled again, and is named", async () => {
  const links = new PeerLinks({
    endpoint: await open("maker/0"),
    resolve: async () => ({ addresses: ["unix:/nonexistent/socket"] }),
    accept: () => {},
    startTimeoutMs: 60_000,
  });
  await expect(links.connect("maker/1")).rejects.toMatchObject({
    code: "link.refused",
    message: expect.stringContaining("worker 'maker/1' cannot be reached"),
  });
});

test("DP2: items of a node that many others ask are asked for until it lets this one in, and are freed there", async () => {
  const there = await open("depot of a", { tcp: { port: 0 } });
  const freed: string[] = [];
  there.onLink((accepted) => {
    const peer = createPeer(accepted, runProtocol);
    peer.handle("payload.read", ({ segment }) => encodeItem(`${segment} of a`));
    peer.handle("payload.free", ({ segments }) => void freed.push(...segments));
  });
  const door = await crowdedDoor(there, 8); // more than it asks a node that is gone
  const newDistant = async (name: string) =>
    new DistantPayloads({
      node: "here",
      endpoint: await open(name),
      depots: async () => [{ node: "a", addresses: [door.address], consumes: false }],
      letGo: () => {},
    });
  const item: KeptItem = { index: 0, segment: "one", sizeBytes: 1, node: "a" };
  const read = await (await newDistant("maker/0")).locate("items", [item], undefined);
  expect(read(item)).toBe("one of a");

  const again = await crowdedDoor(there, 3);
  (await newDistant("maker/1")).free({ addresses: [again.address] }, [{ segment: "one" }]);
  await expect.poll(() => freed, { timeout: 60_000 }).toEqual(["one"]);
}, 60_000);
