import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { NatsConfig, type RunLog } from "@treadle/contracts";
import { NatsRunStore } from "@treadle/transport";
import { freePort, type NatsServer, startNatsServer } from "@treadle/transport/testing";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { JournalFile } from "../../../src/runner/run/journal-file.ts";
import { KeptRun } from "../../../src/runner/run/kept-run.ts";
import { RunFolder } from "../../../src/runner/run/run-folder.ts";

let root: string;
let server: NatsServer;
let numRuns = 0;
beforeAll(async () => {
  server = await startNatsServer();
});
afterAll(() => server[Symbol.asyncDispose]());
const open: RunLog[] = [];
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-log-"));
  numRuns++;
});
afterEach(async () => {
  await Promise.all(open.splice(0).map((log) => log.close()));
  await rm(root, { recursive: true, force: true });
});

const natsOf = (over: object = {}) => NatsConfig.parse({ url: server.url, ...over });

async function openStore(folder = root, over: object = {}): Promise<NatsRunStore> {
  const store = await NatsRunStore.open({ nats: natsOf(over), name: "test", runId: `run-${numRuns}`, folder });
  open.push(store);
  return store;
}

/** An opening of the log of a run; `machine`: whose copy of its folder is used. */
type Open = (machine?: string) => Promise<RunLog>;

const worlds: Record<string, Open> = {
  "in a file": async () => JournalFile.open(join(root, "journal.jsonl")),
  "at the NATS servers": async () => {
    const store = await openStore();
    await store.take();
    return store;
  },
  "at the NATS servers, with a copy in a folder": async (machine = "a") => openKept(machine),
};

async function openKept(machine: string): Promise<KeptRun> {
  const folder = new RunFolder(join(root, machine), `run-${numRuns}`);
  await folder.create();
  await writeFile(folder.configFile, "{}\n", { flag: "a" });
  const store = await openStore(folder.path);
  open.pop(); // it is closed with what is made of it
  await store.take();
  return KeptRun.open(store, folder, (entry) => (JSON.parse(entry) as { files?: string[] }).files ?? []);
}

const entry = (i: number, more: object = {}): string => JSON.stringify({ i, text: "ü\n", ...more });

describe.each(Object.entries(worlds))("a log %s", (_, openLog) => {
  const opened = async (machine?: string): Promise<RunLog> => {
    const log = await openLog(machine);
    open.push(log);
    return log;
  };

  test("LG1: what was appended is there for the next one, in order, of any length", async () => {
    const first = await opened();
    expect(first.entries).toEqual([]);
    const all = [entry(0), entry(1, { long: "x".repeat(1_500_000) }), entry(2)];
    for (const each of all) await first.append(each);
    expect(first.entries).toEqual(all);
    const second = await opened();
    expect(second.entries).toEqual(all);
    await second.append(entry(3));
    expect((await opened()).entries).toEqual([...all, entry(3)]);
  });

  test("LG2, LG3: the one before is refused from the opening of the next one on, which has all that it was told is in", async () => {
    for (let round = 0; round < 3; round++) {
      const first = await opened();
      const before = first.entries.length;
      let done = 0;
      const appending = (async () => {
        for (;;) {
          await first.append(entry(before + done));
          done++;
        }
      })();
      const refused = expect(appending).rejects.toMatchObject({ code: "run.locked" });
      while (done < round) await new Promise((resolve) => setImmediate(resolve));
      const second = await opened();
      await refused;
      expect(second.entries.length).toBeGreaterThanOrEqual(before + done);
      expect(second.entries).toEqual(Array.from(second.entries, (_each, i) => entry(i)));
      await expect(first.append(entry(-1))).rejects.toMatchObject({ code: "run.locked" });
      await second.append(entry(second.entries.length));
    }
  });
});

test("files are there for another machine, whole, the newest of each name, and none that was removed", async () => {
  const [a, b] = [join(root, "a"), join(root, "b")];
  await mkdir(join(a, "state"), { recursive: true });
  await writeFile(join(a, "state/actor.1"), Buffer.alloc(3_000_000, 7));
  await writeFile(join(a, "config.json"), "one");
  const first = await openStore(a);
  await first.take();
  await first.keep("config.json");
  await first.append(entry(0), ["state/actor.1"]);
  await writeFile(join(a, "config.json"), "two");
  await first.keep("config.json");
  await writeFile(join(a, "state/actor.2"), "");
  await first.append(entry(1), ["state/actor.2"]);

  const second = await openStore(b);
  expect((await second.names()).sort()).toEqual(["config.json", "state/actor.1", "state/actor.2"]);
  for (const name of await second.names()) expect(await second.fetch(name)).toBe(true);
  expect((await readFile(join(b, "state/actor.1"))).equals(Buffer.alloc(3_000_000, 7))).toBe(true);
  expect(await readFile(join(b, "state/actor.2"), "utf8")).toBe("");
  expect(await readFile(join(b, "config.json"), "utf8")).toBe("two");
  await first.remove("state/actor.1");
  expect(await second.names()).not.toContain("state/actor.1");
  expect(await second.fetch("state/actor.1")).toBe(false);

  const ids = async () => NatsRunStore.list({ nats: natsOf(), name: "test" });
  expect(await ids()).toContain(`run-${numRuns}`);
  await second.forget();
  expect(await ids()).not.toContain(`run-${numRuns}`);
  const third = await openStore(b);
  await third.take();
  expect(third.entries).toEqual([]);
});

test("KR1: a folder elsewhere becomes what is kept, without states that were superseded", async () => {
  const a = await openKept("a");
  const folder = new RunFolder(join(root, "a"), `run-${numRuns}`);
  const other = new RunFolder(join(root, "b"), `run-${numRuns}`);
  for (const i of [1, 2]) {
    await writeFile(join(folder.state, `actor.${i}`), `state ${i}`);
    await mkdir(join(folder.carried, `step-${i}`));
    await writeFile(join(folder.carried, `step-${i}/items`), `items ${i}`);
    const files = [`state/actor.${i}`, `carried/step-${i}/items`];
    await a.append(entry(i, { files }), files);
  }
  await mkdir(join(folder.checkpoints, "step-1"));
  await writeFile(join(folder.checkpoints, "step-1/checkpoint.json"), "{}");
  await a.syncFolder("checkpoints");
  await a.close();

  const b = await openKept("b");
  expect(b.entries).toHaveLength(2);
  expect(await readFile(join(other.state, "actor.2"), "utf8")).toBe("state 2");
  await expect(readFile(join(other.state, "actor.1"))).rejects.toMatchObject({ code: "ENOENT" });
  expect(await readFile(join(other.carried, "step-2/items"), "utf8")).toBe("items 2");
  await expect(readFile(join(other.carried, "step-1/items"))).rejects.toMatchObject({ code: "ENOENT" });
  expect(await readFile(join(other.checkpoints, "step-1/checkpoint.json"), "utf8")).toBe("{}");
  await rm(join(other.checkpoints, "step-1"), { recursive: true });
  await b.syncFolder("checkpoints");
  await b.append(entry(3));
  await b.close();

  // KR2, KR3: the first machine is put right, and keeps a checkpoint that the servers have no more.
  const again = await openKept("a");
  expect(again.entries).toHaveLength(3);
  expect(await readFile(join(folder.checkpoints, "step-1/checkpoint.json"), "utf8")).toBe("{}");
  await again.close();
});

test("RN3, KR2: servers that lost what they had are noticed, and get it back from the folder", async () => {
  const port = await freePort();
  const other = await startNatsServer({ port });
  const over = { url: other.url, outageMs: 20_000 };
  const folder = new RunFolder(root, `run-${numRuns}`);
  await folder.create();
  await writeFile(folder.configFile, "{}");
  const filesOf = () => [];
  const take = async () => {
    const store = await openStore(folder.path, over);
    open.pop();
    await store.take();
    return KeptRun.open(store, folder, filesOf);
  };
  const kept = await take();
  for (const i of [0, 1, 2]) await kept.append(entry(i));
  await other[Symbol.asyncDispose]();
  await using _empty = await startNatsServer({ port });
  await expect(kept.append(entry(3))).rejects.toMatchObject({ code: "journal.corrupt" });
  await kept.close();
  const again = await take();
  expect(again.entries).toEqual([entry(0), entry(1), entry(2)]);
  await again.append(entry(3));
  await again.close();
});

test("RN1: an append waits for servers that are away, and is refused when that lasts; what it said is in survives their death", async () => {
  await using other = await startNatsServer();
  const notices: string[] = [];
  const store = await NatsRunStore.open({
    nats: NatsConfig.parse({ url: other.url, outageMs: 30_000 }),
    name: "test",
    runId: `run-${numRuns}`,
    folder: root,
    onNotice: (text) => notices.push(text),
  });
  open.push(store);
  const brief = await openStore(root, { url: other.url, outageMs: 500, subjectPrefix: "other" });
  await store.take();
  await brief.take();
  await other.stop("SIGKILL");
  const appended = store.append(entry(0));
  await expect(brief.append(entry(0))).rejects.toMatchObject({ code: "control-plane.unreachable" });
  await other.start();
  await appended;
  expect(store.entries).toEqual([entry(0)]);
  await other.stop("SIGKILL");
  await other.start();
  expect(notices.length).toBeLessThanOrEqual(2);
  const next = await openStore(root, { url: other.url });
  await next.take();
  expect(next.entries).toEqual([entry(0)]);
}, 180_000);

test("RN2: an entry whose acknowledgement was lost is in the log once, and appending goes on", async () => {
  await using line = await cutLine(server.port);
  const store = await openStore(root, { url: line.url, outageMs: 30_000 });
  await store.take();
  await store.append(entry(0));
  line.loseAnswers();
  await store.append(entry(1));
  expect(line.numLost).toBeGreaterThan(0);
  await store.append(entry(2));
  const next = await openStore();
  await next.take();
  expect(next.entries).toEqual([0, 1, 2].map((i) => entry(i)));
}, 60_000);

test("RN4: a file that servers have lost while its runner appends is kept there again", async () => {
  await writeFile(join(root, "state"), "weights");
  const store = await openStore();
  await store.take();
  await store.append(entry(0), ["state"]);
  const other = await openStore();
  await other.remove("state");
  expect(await other.names()).toEqual([]);
  await new Promise((resolve) => setTimeout(resolve, 2100)); // it looks every two seconds
  await store.append(entry(1));
  expect(await other.names()).toEqual(["state"]);
});

/** A way to the servers whose next answer that matters is lost, with the connection; later ones are sound. */
async function cutLine(port: number) {
  let isLosing = false;
  const line = {
    url: "",
    numLost: 0,
    loseAnswers: () => {
      isLosing = true;
    },
    [Symbol.asyncDispose]: async () => {},
  };
  const sockets = new Set<Socket>();
  const listener = createServer((near) => {
    const far = connect(port, "127.0.0.1");
    for (const socket of [near, far]) {
      sockets.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => {
        near.destroy();
        far.destroy();
      });
    }
    let hasPublished = false;
    near.on("data", (bytes) => {
      hasPublished ||= isLosing && bytes.includes("$KV.");
      far.write(bytes);
    });
    far.on("data", (bytes) => {
      if (!hasPublished) near.write(bytes);
      else {
        isLosing = false;
        line.numLost++;
        near.destroy();
      }
    });
  });
  await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
  line.url = `nats://127.0.0.1:${(listener.address() as AddressInfo).port}`;
  line[Symbol.asyncDispose] = async () => {
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => listener.close(resolve));
  };
  return line;
}
