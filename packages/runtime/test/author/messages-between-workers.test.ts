import { type MessageEnvelope, type Peer, TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { Messenger } from "../../src/author/messages/messenger.ts";
import { died, inCall, ranksOf, turn } from "./messenger-group.ts";

const group = (size: number, delay: () => number = () => 0) => ranksOf("actor", size, { delay });

describe("send and recv", () => {
  test("messages of a pair and tag arrive in order, whatever is asked for first", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.boolean(), fc.nat(2)), { maxLength: 60 }),
        fc.infiniteStream(fc.nat(2)),
        async (script, delays) => {
          const [a, b] = group(2, () => delays.next().value as number) as [Messenger, Messenger];
          const peers = [0, 1, 2].map(() => 0);
          const asked = [0, 1, 2].map(() => 0);
          const received: Promise<unknown>[] = [];
          const sent: Promise<void>[] = [];
          const expected: number[] = [];
          const next = (counts: number[], tag: number): number => {
            counts[tag] = (counts[tag] as number) + 1;
            return counts[tag];
          };
          const send = (tag: number) => sent.push(a.send("actor/1", next(peers, tag), `t${tag}`));
          const recv = (tag: number) => {
            received.push(b.recv("actor/0", `t${tag}`));
            expected.push(next(asked, tag));
          };
          for (const [isSend, tag] of script) {
            if (isSend) send(tag);
            else recv(tag);
            await turn();
          }
          for (const tag of [0, 1, 2]) {
            while ((peers[tag] as number) < (asked[tag] as number)) send(tag);
            while ((asked[tag] as number) < (peers[tag] as number)) recv(tag);
          }
          expect(await Promise.all(received)).toEqual(expected);
          await Promise.all(sent);
        },
      ),
      { numRuns: 60 },
    );
  });

  test("MS1: a mailbox is bounded: its senders wait, and go on as messages are taken", async () => {
    const [a, b] = group(2) as [Messenger, Messenger];
    let accepted = 0;
    const sends = Array.from({ length: 40 }, (_, i) => a.send("actor/1", i).then(() => accepted++));
    for (let i = 0; i < 50; i++) await turn();
    const bound = accepted;
    expect(bound).toBeLessThan(40);
    expect(bound).toBeGreaterThan(0);
    expect(await b.recv("actor/0")).toBe(0);
    for (let i = 0; i < 50; i++) await turn();
    expect(accepted).toBeLessThanOrEqual(bound + 1);
    for (let i = 1; i < 40; i++) expect(await b.recv("actor/0")).toBe(i);
    await Promise.all(sends);
    expect(accepted).toBe(40);
  });

  test("a death fails only those that wait for that worker, drops what it had sent, and lets a new one begin afresh", async () => {
    const [zero, one, two] = group(3) as [Messenger, Messenger, Messenger];
    const fromZero = two.recv("actor/0", "x");
    const fromOne = two.recv("actor/1", "x");
    await zero.send("actor/2", "old", "y");
    two.peerDied("actor/0", died);
    await expect(fromZero).rejects.toBe(died);
    await zero.send("actor/2", "new", "y");
    expect(await two.recv("actor/0", "y")).toBe("new");
    await one.send("actor/2", "there", "x");
    expect(await fromOne).toBe("there");
  });

  test("workers whose names begin alike are not taken for one another", async () => {
    const [, b] = group(2) as [Messenger, Messenger];
    let isSettled = false;
    void b.recv("actor/10").then(
      () => (isSettled = true),
      () => (isSettled = true),
    );
    b.peerDied("actor/1", died);
    await turn();
    expect(isSettled).toBe(false);
  });

  test("senders that wait for room are let go when their receiver drops what a dead worker sent", async () => {
    const [a, b] = group(2) as [Messenger, Messenger];
    const sends = Array.from({ length: 20 }, (_, i) => a.send("actor/1", i));
    for (let i = 0; i < 30; i++) await turn();
    b.peerDied("actor/0", died);
    await Promise.all(sends);
  });
});

test("what comes under a tag whose waiting was ended is dropped and delays no sender, until somebody waits again", async () => {
  const [a, b] = group(2) as [Messenger, Messenger];
  const end = new AbortController();
  const waiting = b.recv("actor/0", "episodes.7", { signal: end.signal });
  end.abort(new Error("the call is over"));
  await expect(waiting).rejects.toThrow("the call is over");
  // More than a mailbox holds.
  for (let each = 0; each < 40; each++) await a.send("actor/1", each, "episodes.7");
  await a.send("actor/1", "of another call", "episodes.8");
  expect(await b.recv("actor/0", "episodes.8")).toBe("of another call");
  const next = b.recv("actor/0", "episodes.7");
  await a.send("actor/1", "anew", "episodes.7");
  expect(await next).toBe("anew");
});

describe("rendezvous", () => {
  test("RV1: nobody gets a place before the last rank has come; then all get the same", async () => {
    const all = group(3);
    let numPlaces = 0;
    const [one, two] = all.slice(1).map((each) => each.rendezvous());
    const zero = all[0]?.rendezvous().then((place) => {
      numPlaces++;
      return place;
    });
    expect(new Set((await Promise.all([zero, one, two])).map((place) => place?.key)).size).toBe(1);
    expect(numPlaces).toBe(1);

    const [early, late] = [all[0]?.rendezvous(), all[1]?.rendezvous()];
    let isEarly = false;
    void early?.then(() => (isEarly = true));
    for (let i = 0; i < 100; i++) await turn();
    expect(isEarly).toBe(false);
    const last = all[2]?.rendezvous();
    expect(new Set((await Promise.all([early, late, last])).map((place) => place?.key)).size).toBe(1);
  });

  test("RV3: those that came are told the same: who did not", async () => {
    const [zero, one] = group(3) as [Messenger, Messenger];
    const came = one.rendezvous();
    came.catch(() => {});
    for (let i = 0; i < 20; i++) await turn();
    const error = {
      code: "rendezvous.incomplete",
      message: expect.stringContaining(": 'actor/2' did not come"),
      details: { component: "actor", workers: ["actor/2"] },
    };
    await expect(zero.rendezvous({ timeoutMs: 30 })).rejects.toMatchObject(error);
    await expect(came).rejects.toMatchObject(error);
    expect(zero.awaited(-1)).toEqual([]);
  });

  test("RV3: one whose first rank does not come says so, and waits no more", async () => {
    const [, one] = group(2) as [Messenger, Messenger];
    await expect(one.rendezvous({ timeoutMs: 30 })).rejects.toMatchObject({ details: { workers: ["actor/0"] } });
    expect(one.awaited(-1)).toEqual([]);
  });

  test("a death while the others wait is theirs to know", async () => {
    const [zero, one] = group(3) as [Messenger, Messenger];
    const [first, other] = [zero.rendezvous(), one.rendezvous()];
    first.catch(() => {});
    other.catch(() => {});
    for (let i = 0; i < 20; i++) await turn();
    zero.peerDied("actor/2", new TreadleError("worker.died", "gone", { origin: { worker: "actor/2" } }));
    await expect(first).rejects.toMatchObject({ code: "worker.died" });
    one.peerDied("actor/0", died);
    await expect(other).rejects.toBe(died);
  });
});

describe("collectives", () => {
  test.each([1, 2, 3, 5])("broadcast, gather and allReduceSum over %i ranks, again and again", async (size) => {
    const all = group(size, () => Math.floor(Math.random() * 3));
    for (let round = 0; round < 3; round++) {
      const root = round % size;
      const got = await Promise.all(
        all.map((each, rank) => each.broadcast(rank === root ? `v${round}` : "mine", root)),
      );
      expect(got).toEqual(all.map(() => `v${round}`));
      const gathered = await Promise.all(all.map((each, rank) => each.gather(rank * 10 + round, root)));
      expect(gathered[root]).toEqual(all.map((_, rank) => rank * 10 + round));
      expect(gathered.filter((value) => value !== undefined)).toHaveLength(1);
      const sums = await Promise.all(all.map((each, rank) => each.allReduceSum(Float32Array.of(0.1 * rank, round))));
      for (const sum of sums) expect([...sum]).toEqual([...(sums[0] as Float32Array)]);
      expect(sums[0]?.[1]).toBe(size * round);
    }
  });

  test("numbers of float64 are summed as such: beyond 2^24 they still count by one", async () => {
    const all = group(3);
    const own = all.map((_, rank) => Float64Array.of(rank === 0 ? 2 ** 24 : 1));
    const sums = await Promise.all(all.map((each, rank) => each.allReduceSum(own[rank] as Float64Array)));
    for (const sum of sums) expect(sum).toEqual(Float64Array.of(2 ** 24 + 2));
    expect(own[0]).toEqual(Float64Array.of(2 ** 24));
  });

  test("ranks that sum different numbers of values are told", async () => {
    const all = group(2);
    const [root] = await Promise.allSettled(
      all.map((each, rank) =>
        Promise.race([each.allReduceSum(new Float32Array(rank + 1)), turn().then(turn).then(turn)]),
      ),
    );
    expect((root as PromiseRejectedResult).status).toBe("rejected");
  });

  test("nothing is kept of collectives and messages that are over, however many there were", async () => {
    const all = group(3, () => Math.floor(Math.random() * 3));
    for (let call = 1; call <= 50; call++) {
      await inCall(all, call, async (each) => {
        await each.broadcast(call);
        await each.allReduceSum(Float32Array.of(call));
        await each.rendezvous();
        const next = `actor/${(Number(each.self.split("/")[1]) + 1) % 3}`;
        const before = `actor/${(Number(each.self.split("/")[1]) + 2) % 3}`;
        await each.send(next, call, each.callTag("ring"));
        await each.recv(before, each.callTag("ring"));
      });
    }
    expect(all.map(({ mailbox }) => mailbox.size)).toEqual([0, 0, 0]);
  });

  test("what a call left lying when it failed is dropped at the next one; what runs ahead is not", async () => {
    const [zero, one] = group(2) as [Messenger, Messenger];
    await inCall([one], 1, (each) => each.gather("large")); // of a call that fails at the first rank before it gathers
    await inCall([one], 3, (each) => each.gather("ahead"));
    expect(zero.mailbox.size).toBe(2);
    await Promise.all([
      inCall([zero], 2, (each) => each.broadcast("two")),
      inCall([one], 2, (each) => each.broadcast(undefined)),
    ]);
    expect(zero.mailbox.size).toBe(1);
    expect(await inCall([zero], 3, (each) => each.gather("own"))).toEqual([["own", "ahead"]]);
    expect(zero.mailbox.size).toBe(0);
  });

  test("a rank whose call is made again meets one that has started again", async () => {
    const start = (rank: number, other: () => Messenger) =>
      new Messenger({
        component: "actor",
        rank,
        worldSize: 2,
        incarnation: 0,
        node: "a",
        connect: async () =>
          ({ request: async (_verb: string, body: MessageEnvelope) => other().deliver(body) }) as unknown as Peer,
        reachable: async () => {},
        nodesOf: async (workers) => workers.map(() => "a"),
        peerTimeoutMs: 60_000,
      });
    const one: Messenger = start(1, () => zero);
    let zero = start(0, () => one);
    const work = async (each: Messenger) => [await each.gather(each.self), await each.broadcast(each.self)];
    const dies = inCall([zero], 1, (each) => each.gather(each.self));
    const waits = inCall([one], 1, work);
    await dies;
    one.peerDied("actor/0", died);
    await expect(waits).rejects.toBe(died);
    zero = start(0, () => one);
    expect(await inCall([zero, one], 1, work)).toEqual([
      [["actor/0", "actor/1"], "actor/0"],
      [undefined, "actor/0"],
    ]);
  });
});
