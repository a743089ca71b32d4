/** What a pool learns of runs that compute beside each other, over the shipped ends of both: kept, and used by the next. */
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { KnownSlowdowns, type PoolReply, RuntimeConfig, type WorkDone } from "@treadle/contracts";
import { expect, test } from "vitest";
import { DevicePool } from "../../src/pool/device-pool.ts";
import { readSlowdowns } from "../../src/pool/slowdown-file.ts";
import { PoolClient } from "../../src/runner/nodes/pool-client.ts";
import { closeAfterTest, patient } from "./pool-machine.ts";

const config = RuntimeConfig.parse({ cluster: { devices: 1 }, pool: { share: "always" } });
const done = (ms: number, beside: readonly string[] = [], passes = 10): WorkDone => ({
  ...{ beside: [...beside], passes, tokens: 0, ms, cpuMs: ms, queuedMs: 0, forMs: ms, ends: true },
});

type Said = { readonly type: string; readonly component?: string | null; readonly token?: number };

/** Two runs, whose locks agree to whatever the pool asks. */
async function sharingPool(slowdowns: string, onNotice?: (text: string) => void) {
  const pool = new DevicePool(patient, { sharing: { method: "greedy", window: 3, slowdowns }, onNotice });
  closeAfterTest(() => pool.close());
  const runs = await Promise.all(
    ["a", "b"].map(async (name) => {
      let reply: (said: PoolReply) => void = () => {};
      pool.add(name, { reply: (said) => reply(said), end: (why) => expect.unreachable(why) });
      const client = new PoolClient({
        send: (request) => pool.received(name, request),
        onReply: (listener) => {
          reply = listener;
        },
        onLost: () => {},
      });
      closeAfterTest(() => client.close());
      const acts = new Map<string, (effect: never) => void>();
      const told: {
        readonly type: string;
        readonly token?: number;
        readonly lease?: { readonly token: number; readonly only?: string };
      }[] = [];
      const say = (effect: Said) => acts.get(effect.type)?.(effect as never);
      const loop = {
        on: (type: string, act: (effect: never) => void) => acts.set(type, act),
        feed: (input: (typeof told)[number]) => {
          told.push(input);
          if (input.type === "lease-share") say({ type: "share-lease", token: input.token!, component: "train" });
        },
      };
      client.serve(loop as never, (component) => `${component}@${name}`);
      await client.join(config, name);
      const ask = () => say({ type: "ask-lease", devices: ["cpu:0"], component: "train" } as never);
      const lease = () => told.findLast(({ type }) => type === "leased")?.lease;
      const release = () => say({ type: "release-lease", token: lease()!.token });
      return { client, ask, lease, release, told };
    }),
  );
  return { pool, a: runs[0]!, b: runs[1]! };
}

test("each alone first, then beside each other, by which it decides from then on; the next pool knows it (PS8, PD10, CR1)", async () => {
  const path = join(mkdtempSync(join(tmpdir(), "treadle-")), ".treadle", "slowdowns.json");
  const { pool, a, b } = await sharingPool(path);
  a.ask();
  b.ask();
  expect(b.lease(), "nobody knows either alone").toBeUndefined();
  for (let i = 0; i < 4; i++) a.client.worked("train", ["cpu:0"], done(20));
  a.release();
  for (let i = 0; i < 4; i++) b.client.worked("train", ["cpu:0"], done(30));
  a.ask();
  const [works] = [a.client.besideOn(["cpu:0"])];
  expect(works).toHaveLength(1);
  expect([works![0], a.lease()!.only]).toEqual(["train@b", "train@a"]);
  for (let i = 0; i < 4; i++) a.client.worked("train", ["cpu:0"], done(60, works));
  for (let i = 0; i < 4; i++) b.client.worked("train", ["cpu:0"], done(90, b.client.besideOn(["cpu:0"])));
  expect(pool.slowdowns().map(({ factor }) => factor.toFixed(3))).toEqual(["3.000", "3.000"]);
  // Three times as long each is no gain.
  b.release();
  expect(a.told.at(-1)).toEqual({ type: "lease-alone", token: a.lease()!.token });
  const before = b.lease();
  b.ask();
  expect(b.lease()).toBe(before);
  await pool.close();
  KnownSlowdowns.parse(JSON.parse(readFileSync(path, "utf8")));
  const next = await sharingPool(path);
  expect(next.pool.slowdowns(), "neither has computed yet").toEqual([]);
  for (const run of [next.a, next.b]) run.client.worked("train", ["cpu:0"], done(20));
  expect(next.pool.slowdowns().map(({ work, beside }) => [work, beside])).toEqual([
    ["train@a", "train@b"],
    ["train@b", "train@a"],
  ]);
  writeFileSync(path, "{}");
  await expect(sharingPool(path)).rejects.toMatchObject({
    code: "profile.invalid",
    message: expect.stringContaining(path),
  });
});

test("kept slowdowns that cannot be so are left out, and said once", async () => {
  const path = join(mkdtempSync(join(tmpdir(), "treadle-")), "slowdowns.json");
  const pair = (count: number, expected: number, ms: number) => {
    const [work, beside] = [`train@a${count}`, `train@b${expected}`];
    return { ...{ work, beside, memory: 1, tried: count }, told: { count, expected, ms, squares: ms } };
  };
  const possible = [pair(0, 0, 0), pair(50, 1000, 500), pair(50, 1000, 1200)];
  const notSo = [pair(50, 1e9, 0), pair(50, 1000, 499), pair(50, 0, 0), pair(50, 0, 10)];
  const known = { version: 1, alone: [], pairs: [...notSo, ...possible] };
  writeFileSync(path, JSON.stringify(known));
  const notices: string[] = [];
  expect(readSlowdowns(path, (text) => notices.push(text))).toEqual({ ...known, pairs: possible });
  expect(notices).toEqual([
    expect.stringMatching(/4 measured slowdowns .*'train@a50' beside 'train@b1000000000' took '0'/),
  ]);
  writeFileSync(path, JSON.stringify({ ...known, pairs: possible }));
  readSlowdowns(path, expect.unreachable);
  writeFileSync(path, JSON.stringify(known));
  await sharingPool(path, (text) => notices.push(text));
  expect(notices).toHaveLength(2);
});

test("a run that does not share says nothing of what it computes, nor is it told (PD10)", async () => {
  const sent: string[] = [];
  const client = new PoolClient({
    send: (request) => sent.push(`${request.type}${"work" in request ? " with its work" : ""}`),
    onReply: () => {},
    onLost: () => {},
  });
  closeAfterTest(() => client.close());
  const acts = new Map<string, (effect: never) => void>();
  client.serve({ on: (type: string, act: (effect: never) => void) => acts.set(type, act), feed: () => {} } as never);
  void client.join(RuntimeConfig.parse({ cluster: { devices: 1 } }), "a").catch(() => {});
  acts.get("ask-lease")?.({ devices: ["cpu:0"], component: "train" } as never);
  acts.get("use-lease")?.({ type: "use-lease", token: 1, component: "train" } as never);
  client.worked("train", ["cpu:0"], done(1));
  expect(sent).toEqual(["join", "request"]);
  expect(client.besideOn(["cpu:0"])).toBeUndefined();
});
