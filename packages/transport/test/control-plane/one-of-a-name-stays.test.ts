import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Announcement, type ControlPlane, NatsConfig } from "@treadle/contracts";
import fc from "fast-check";
import { afterEach, expect, test, vi } from "vitest";
import { type Claim, isAbove, settleName } from "../../src/control-plane/name-contest.ts";
import { openNatsControlPlane } from "../../src/index.ts";
import { connectStranger, type NatsServer, startNatsServer } from "../../src/testing/index.ts";

const windowMs = 100;
const beatMs = 1000;
const endMs = 60_000;

type Contender = {
  readonly identity: string;
  readonly skewMs: number;
  incarnation: number;
  /** the highest that it was told of */
  newest: number;
  status: "absent" | "claims" | "stays" | "gone";
  isBeaten: boolean;
  readonly heard: Claim[];
};

/** Contenders in virtual time, whose words take their time, each another; some words are lost. */
class Contest {
  readonly all: Contender[];
  readonly #delays: Iterator<number>;
  readonly #queue: { readonly atMs: number; readonly act: () => void }[] = [];
  /** what those who watch remember of one that has ended */
  readonly #remembered: number;
  #nowMs = 0;

  constructor(
    starts: readonly { readonly atMs: number; readonly skewMs: number; readonly identity: string }[],
    delays: Iterator<number>,
    remembered: number,
  ) {
    this.#delays = delays;
    this.#remembered = remembered;
    this.all = starts.map(({ skewMs, identity }) => ({
      ...{ identity, skewMs, incarnation: 0, newest: 0, isBeaten: false, heard: [] },
      status: "absent",
    }));
    for (const [index, { atMs }] of starts.entries()) this.#at(atMs, () => this.#claim(this.all[index] as Contender));
  }

  run(): void {
    for (;;) {
      this.#queue.sort((a, b) => a.atMs - b.atMs);
      const next = this.#queue.shift();
      if (next === undefined || next.atMs > endMs) return;
      this.#nowMs = next.atMs;
      next.act();
    }
  }

  #at(atMs: number, act: () => void): void {
    this.#queue.push({ atMs, act });
  }

  /** Undefined: it is lost. */
  #send(act: () => void): void {
    const delayMs = this.#delays.next().value as number;
    if (delayMs >= 0) this.#at(this.#nowMs + delayMs, act);
  }

  #claim(own: Contender): void {
    own.status = "claims";
    own.isBeaten = false;
    own.incarnation = Math.max(1000 + this.#nowMs + own.skewMs, own.newest + 1);
    this.#say(own);
    if (this.#remembered > own.incarnation)
      this.#send(() => {
        own.newest = Math.max(own.newest, this.#remembered);
      });
    this.#at(this.#nowMs + windowMs, () => this.#settle(own));
  }

  #say(own: Contender): void {
    const claim = { incarnation: own.incarnation, identity: own.identity };
    for (const other of this.all) if (other !== own) this.#send(() => this.#hear(other, own, claim));
  }

  #hear(own: Contender, from: Contender, claim: Claim): void {
    if (own.status === "absent" || own.status === "gone") return;
    own.heard.push(claim);
    if (isAbove(claim, own)) {
      own.newest = Math.max(own.newest, claim.incarnation);
      own.isBeaten = true;
      if (own.status === "stays") own.status = "gone";
    } else if (claim.incarnation < own.incarnation) {
      const { incarnation } = own;
      this.#send(() => {
        from.newest = Math.max(from.newest, incarnation);
      });
    }
  }

  #settle(own: Contender): void {
    const isRivalThere = this.all.some(
      ({ status, incarnation, identity }) =>
        (status === "claims" || status === "stays") &&
        incarnation > own.incarnation &&
        own.heard.some((claim) => claim.incarnation === incarnation && claim.identity === identity),
    );
    const { incarnation, identity, newest, isBeaten } = own;
    const decision = settleName({ own: { incarnation, identity }, newest, isRivalThere, isBeaten });
    if (decision.type === "rise") this.#claim(own);
    else if (decision.type === "give way") own.status = "gone";
    else {
      own.status = "stays";
      this.#beat(own);
    }
  }

  #beat(own: Contender): void {
    if (own.status !== "stays") return;
    this.#say(own);
    this.#at(this.#nowMs + beatMs, () => this.#beat(own));
  }
}

test("NC1, NC2: of those that begin at the same time one stays, whatever their clocks say, in any order and with any delay", () => {
  const start = fc.record({ atMs: fc.nat(400), skewMs: fc.constantFrom(0, 0, -2000, 3000) });
  const delay = fc.oneof(fc.nat(5), fc.nat(300), fc.nat(3000), fc.constant(-1));
  fc.assert(
    fc.property(
      fc.array(start, { minLength: 1, maxLength: 5 }),
      fc.boolean(),
      fc.infiniteStream(delay),
      fc.constantFrom(0, 0, 10_000),
      (starts, isAtOnce, delays, remembered) => {
        const each = starts.map((one, index) => ({ ...one, ...(isAtOnce ? starts[0] : {}), identity: `id ${index}` }));
        const contest = new Contest(each as never, delays, remembered);
        contest.run();
        expect(contest.all.map(({ status }) => status).filter((status) => status !== "gone")).toEqual(["stays"]);
      },
    ),
  );
});

test("NC1: whoever orders two claims orders them alike", () => {
  const claim = fc.record({ incarnation: fc.nat(3), identity: fc.constantFrom("a", "b", "c") });
  fc.assert(
    fc.property(claim, claim, claim, (a, b, c) => {
      const isSame = a.incarnation === b.incarnation && a.identity === b.identity;
      expect(Number(isAbove(a, b)) + Number(isAbove(b, a)) + Number(isSame)).toBe(1);
      if (isAbove(a, b) && isAbove(b, c)) expect(isAbove(a, c)).toBe(true);
    }),
  );
});

let server: NatsServer | undefined;
let folder: string | undefined;
afterEach(async () => {
  await server?.[Symbol.asyncDispose]();
  if (folder !== undefined) await rm(folder, { recursive: true, force: true });
});

test("NC1: processes that announce one name in the same moment end up with one of them, and the others are told", async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-names-"));
  server = await startNatsServer();
  const nats = NatsConfig.parse({ url: server.url });
  const planes = await Promise.all(
    Array.from({ length: 4 }, (_, index) =>
      openNatsControlPlane({ nats, name: `plane ${index}`, keepsRecords: false }),
    ),
  );
  const watcher = planes[0] as ControlPlane;
  for (let round = 0; round < 10; round++) {
    const name = `n${round}`;
    const replaced = new Set<Announcement>();
    const all = await Promise.all(
      planes.map(async (plane) => {
        const announcement = await plane.announce("node", name, {}, () => undefined);
        announcement.onReplaced(() => replaced.add(announcement));
        return announcement;
      }),
    );
    await expect.poll(() => replaced.size, { timeout: 20_000 }).toBe(planes.length - 1);
    const [stays] = all.filter((each) => !replaced.has(each));
    await expect
      .poll(() => watcher.members("node").find((member) => member.name === name)?.incarnation, { timeout: 20_000 })
      .toBe(stays?.incarnation);
  }
  await Promise.all(planes.map((plane) => plane.close()));
}, 120_000);

test("NC2: whoever finds another above it that is there gives way, and does not rise above it in turn", async () => {
  server = await startNatsServer();
  const nats = NatsConfig.parse({ url: server.url });
  const plane = await openNatsControlPlane({ nats, name: "plane", keepsRecords: false });
  // One whose clock is ahead, and which begins in the very moment in which it is too late to look who is there.
  const rival = await connectStranger(server.url);
  const ahead = { incarnation: 2 ** 51, version: 0, body: {}, identity: crypto.randomUUID() };
  const heard: number[] = [];
  const say = () => {
    rival.publish("treadle.entry.node.a", JSON.stringify(ahead));
    rival.publish("treadle.beat.node.a", JSON.stringify({ incarnation: ahead.incarnation, version: 0 }));
    rival.publish("treadle.ask.node.a", JSON.stringify(ahead));
  };
  rival.subscribe("treadle.entry.node.a", {
    callback: (_, message) => {
      const { incarnation } = JSON.parse(message.string()) as { incarnation: number };
      heard.push(incarnation);
      if (incarnation !== ahead.incarnation) say();
    },
  });
  await rival.flush();
  const announcement = await plane.announce("node", "a", {}, () => undefined);
  await new Promise<void>((resolve) => announcement.onReplaced(resolve));
  expect(heard.filter((incarnation) => incarnation > ahead.incarnation)).toEqual([]);
  expect(plane.members("node")).toMatchObject([{ name: "a", incarnation: ahead.incarnation }]);
  await plane.close();
  await rival.close();
}, 60_000);

test("NC1: of two of one incarnation the same one stays for all, and is the one that all know", async () => {
  server = await startNatsServer();
  const nats = NatsConfig.parse({ url: server.url });
  const now = vi.spyOn(performance, "now");
  const planes = await Promise.all(
    ["one", "two"].map((name) => openNatsControlPlane({ nats, name, keepsRecords: false })),
  );
  now.mockReturnValue(performance.now() + 5000); // the same microsecond for both
  try {
    const replaced = new Set<string>();
    const announce = async (plane: ControlPlane, body: string) => {
      const announcement = await plane.announce("node", "a", { body }, () => undefined);
      announcement.onReplaced(() => replaced.add(body));
      return announcement;
    };
    const [one, two] = await Promise.all(planes.map((plane, index) => announce(plane, `${index}`)));
    expect(one?.incarnation).toBe(two?.incarnation);
    await expect.poll(() => replaced.size, { timeout: 10_000 }).toBe(1);
    const stays = replaced.has("0") ? "1" : "0";
    for (const plane of planes)
      await expect.poll(() => plane.members("node"), { timeout: 10_000 }).toMatchObject([{ body: { body: stays } }]);
  } finally {
    now.mockRestore();
    await Promise.all(planes.map((plane) => plane.close()));
  }
}, 60_000);
