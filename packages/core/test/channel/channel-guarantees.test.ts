import { describe, expect, test } from "vitest";
import type { ChannelEffect, PutItem } from "../../src/channel/channel-messages.ts";
import { type ChannelOptions, ChannelState } from "../../src/channel/channel-state.ts";
import { leastLoaded, priority } from "../../src/channel/pick-policy.ts";

const items = (...payloads: string[]): PutItem[] => payloads.map((payload) => ({ payload, sizeBytes: 1 }));

/** Effects as short lines: `deliver consumer/0: a b`, `accepted 3`, `end consumer/0`. */
function lines(effects: readonly ChannelEffect[]): string[] {
  return effects.map((effect) => {
    if (effect.type === "deliver")
      return `deliver ${effect.call}: ${effect.deliveries.map((item) => item.payload).join(" ")}`;
    if (effect.type === "put-accepted") return `accepted ${effect.put}`;
    if (effect.type === "put-refused") return `refused ${effect.put}: ${effect.error.code}`;
    if (effect.type === "fail") return `fail ${effect.call}: ${effect.error.message}`;
    if (effect.type === "finished") return `finished ${effect.segments.join(" ")}`;
    return `${effect.type} ${effect.call}`;
  });
}

function channelOf(options: Partial<ChannelOptions>, calls: Record<string, "source" | "sink">): ChannelState {
  const channel = new ChannelState({ name: "episodes", capacity: { items: 100 }, ...options });
  for (const [call, role] of Object.entries(calls)) channel.open({ call, worker: call, role, stream: 1 });
  return channel;
}

const ok = { ok: true } as const;
const nowMs = 0;

describe("C1 delivery and redelivery", () => {
  test("what a dead consumer held is delivered to another one, in its old place", () => {
    const channel = channelOf({}, { p: "sink", a: "source", b: "source" });
    channel.put({ call: "p", put: 1, items: items("one", "two", "three", "four"), nowMs });
    channel.take({ call: "a", take: 2, max: { items: 1 }, nowMs });
    channel.take({ call: "b", take: 3, max: { items: 1 }, nowMs });
    channel.take({ call: "a", take: 4, max: { items: 1 }, nowMs });
    channel.workerDied({ worker: "a" });
    expect(lines(channel.take({ call: "b", take: 5, nowMs }))).toEqual(["deliver b: one three four"]);
  });

  test("what one call of a dead worker held does not go to another call of it", () => {
    const channel = channelOf({}, { p: "sink" });
    for (const call of ["first", "second"]) channel.open({ call, worker: "dead", role: "source", stream: 1 });
    channel.put({ call: "p", put: 1, items: items("one"), nowMs });
    channel.take({ call: "first", take: 2, nowMs });
    channel.take({ call: "second", take: 3, nowMs });
    expect(channel.workerDied({ worker: "dead" })).toEqual([]);
  });

  test("an acknowledgement from a call that no longer holds the item is reported as stale and changes nothing", () => {
    const channel = channelOf({}, { p: "sink", a: "source", b: "source" });
    channel.put({ call: "p", put: 1, items: items("one"), nowMs });
    channel.take({ call: "a", take: 2, nowMs });
    channel.abandon({ calls: ["a"] });
    expect(channel.ack({ call: "a", deliveries: [1] })).toEqual([{ type: "stale-ack", call: "a", deliveries: [1] }]);
    expect(lines(channel.take({ call: "b", take: 3, nowMs }))).toEqual(["deliver b: one"]);
  });

  test("a consumer that closes without acknowledging gives its items back", () => {
    const channel = channelOf({}, { p: "sink", a: "source", b: "source" });
    channel.put({ call: "p", put: 1, items: items("one"), nowMs });
    channel.take({ call: "a", take: 2, nowMs });
    channel.take({ call: "b", take: 3, nowMs });
    expect(lines(channel.close({ call: "a", outcome: ok }))).toEqual(["deliver b: one"]);
  });
});

describe("C2 order and batches", () => {
  const keyed = (...pairs: [string, string][]): PutItem[] =>
    pairs.map(([key, payload]) => ({ key, payload, sizeBytes: 1 }));

  test("later items of a key go to its holder or wait until they are acknowledged", () => {
    const channel = channelOf({}, { p: "sink", a: "source", b: "source" });
    channel.put({ call: "p", put: 1, items: keyed(["x", "x1"], ["x", "x2"], ["y", "y1"], ["x", "x3"]), nowMs });
    expect(lines(channel.take({ call: "a", take: 2, max: { items: 1 }, nowMs }))).toEqual(["deliver a: x1"]);
    expect(lines(channel.take({ call: "b", take: 3, nowMs }))).toEqual(["deliver b: y1"]);
    expect(lines(channel.take({ call: "b", take: 4, nowMs }))).toEqual([]);
    expect(lines(channel.take({ call: "a", take: 5, max: { items: 1 }, nowMs }))).toEqual(["deliver a: x2"]);
    expect(lines(channel.ack({ call: "a" }))).toEqual(["deliver b: x3"]);
  });

  test("a take of one key gets that key only", () => {
    const channel = channelOf({}, { p: "sink", a: "source" });
    channel.put({ call: "p", put: 1, items: keyed(["x", "x1"], ["y", "y1"], ["x", "x2"]), nowMs });
    expect(lines(channel.take({ call: "a", take: 2, key: "x", nowMs }))).toEqual(["deliver a: x1 x2"]);
  });

  test("a batch never exceeds the asked weight, unless one item alone does", () => {
    const channel = channelOf({}, { p: "sink", a: "source" });
    const weighted = [9, 3, 3, 3].map((weight) => ({ payload: `w${weight}`, weight, sizeBytes: 1 }));
    channel.put({ call: "p", put: 1, items: weighted, nowMs });
    expect(lines(channel.take({ call: "a", take: 2, max: { weight: 8 }, nowMs }))).toEqual(["deliver a: w9"]);
    expect(lines(channel.take({ call: "a", take: 3, max: { weight: 8 }, nowMs }))).toEqual(["deliver a: w3 w3"]);
  });

  test("a batch waits for its minimum, and takes the rest when the producers have ended", () => {
    const channel = channelOf({}, { p: "sink", a: "source" });
    channel.take({ call: "a", take: 1, min: 3, nowMs });
    expect(lines(channel.put({ call: "p", put: 2, items: items("one", "two"), nowMs }))).toEqual(["accepted 2"]);
    expect(lines(channel.close({ call: "p", outcome: ok }))).toEqual(["deliver a: one two"]);
  });
});

describe("C3 credit", () => {
  test("puts wait in order for credit, which returns with the acknowledgement", () => {
    const channel = channelOf({ capacity: { items: 2 } }, { p: "sink", q: "sink", a: "source" });
    expect(lines(channel.put({ call: "p", put: 1, items: items("one", "two", "three"), nowMs }))).toEqual([]);
    expect(lines(channel.put({ call: "q", put: 2, items: items("four"), nowMs }))).toEqual([]);
    expect(lines(channel.take({ call: "a", take: 3, max: { items: 2 }, nowMs }))).toEqual(["deliver a: one two"]);
    expect(lines(channel.ack({ call: "a" }))).toEqual(["accepted 1", "accepted 2"]);
    expect(channel.snapshot()).toMatchObject({ usedItems: 2, credit: [{ overdrawnItems: 0 }] });
  });

  test("each stream has credit of its own: what a later step put keeps out nothing of an earlier one", () => {
    const channel = new ChannelState({ name: "episodes", capacity: { items: 2 } });
    for (const stream of ["step-1", "step-2"]) channel.open({ call: stream, worker: "p", role: "sink", stream });
    const put = (call: string, id: number, ...values: string[]) =>
      lines(channel.put({ call, put: id, items: items(...values), nowMs }));
    expect(put("step-2", 1, "later", "later")).toEqual(["accepted 1"]);
    expect(put("step-1", 2, "earlier", "earlier")).toEqual(["accepted 2"]);
    expect(put("step-1", 3, "too much")).toEqual([]);
  });

  test("streams of one id share their credit, so that one put after another is bounded without a step, too", () => {
    const channel = new ChannelState({ name: "episodes", capacity: { items: 2 } });
    const open = (call: string, role: "source" | "sink") =>
      channel.open({ call, worker: call, role, stream: "outside" });
    open("a", "source");
    for (const [id, accepted] of [true, true, false].entries()) {
      open(`p${id}`, "sink");
      const effects = channel.put({ call: `p${id}`, put: id, items: items("one"), nowMs });
      expect(lines(effects)).toEqual(accepted ? [`accepted ${id}`] : []);
      channel.close({ call: `p${id}`, outcome: ok });
    }
  });

  test("an item larger than the whole capacity enters an empty channel", () => {
    const channel = channelOf({ capacity: { items: 4, bytes: 10 } }, { p: "sink" });
    const big = [{ payload: "big", sizeBytes: 50 }];
    expect(lines(channel.put({ call: "p", put: 1, items: big, nowMs }))).toEqual(["accepted 1"]);
    expect(lines(channel.put({ call: "p", put: 2, items: items("small"), nowMs }))).toEqual([]);
  });

  test("a batch larger than the capacity is still served: what a waiting take lacks needs no credit", () => {
    const channel = channelOf({ capacity: { items: 2 } }, { p: "sink", a: "source" });
    channel.take({ call: "a", take: 1, max: { items: 3 }, min: 3, nowMs });
    expect(lines(channel.put({ call: "p", put: 2, items: items("one", "two", "three", "four"), nowMs }))).toEqual([
      "deliver a: one two three",
    ]);
    expect(lines(channel.ack({ call: "a" }))).toEqual(["accepted 2"]);
  });
});

describe("C4 end of stream", () => {
  test("a stream without a producer has not ended", () => {
    const channel = channelOf({}, { a: "source" });
    expect(lines(channel.take({ call: "a", take: 1, nowMs }))).toEqual([]);
    channel.open({ call: "p", worker: "p", role: "sink", stream: 1 });
    expect(lines(channel.close({ call: "p", outcome: ok }))).toEqual(["end a"]);
  });

  test("a stream ends though another consumer still holds the last items, which come back to that one's retry", () => {
    const channel = channelOf({}, { p: "sink", a: "source", b: "source" });
    channel.put({ call: "p", put: 1, items: items("last"), nowMs });
    channel.close({ call: "p", outcome: ok });
    channel.take({ call: "a", take: 2, nowMs });
    expect(lines(channel.take({ call: "b", take: 3, nowMs }))).toEqual(["end b"]);
    channel.workerDied({ worker: "a" });
    channel.retry({ call: "a", worker: "a" });
    expect(lines(channel.take({ call: "a", take: 4, nowMs }))).toEqual(["deliver a: last"]);
  });

  test("a failed producer fails waiting and later takes with its error as the cause, and refuses its siblings' puts", () => {
    const channel = channelOf({ capacity: { items: 1 } }, { p: "sink", q: "sink", a: "source" });
    const error = new Error("out of tokens");
    channel.put({ call: "q", put: 1, items: items("one", "two"), nowMs });
    expect(lines(channel.close({ call: "p", outcome: { ok: false, error } }))).toEqual([
      "refused 1: channel.producer-failed",
    ]);
    const [failure] = channel.take({ call: "a", take: 2, nowMs });
    expect(failure).toMatchObject({ type: "fail", error: { code: "channel.producer-failed", cause: error } });
    expect(lines(failure ? [failure] : [])).toEqual(["fail a: producer 'p' of 'episodes' failed: out of tokens"]);
  });

  test("a retried producer keeps the stream open", () => {
    const channel = channelOf({}, { p: "sink", a: "source" });
    channel.take({ call: "a", take: 1, nowMs });
    expect(lines(channel.workerDied({ worker: "p" }))).toEqual([]);
    expect(lines(channel.put({ call: "p", put: 2, items: items("late"), nowMs }))).toEqual([
      "refused 2: call.cancelled",
    ]);
    channel.retry({ call: "p", worker: "p" });
    expect(lines(channel.put({ call: "p", put: 3, items: items("again"), nowMs }))).toEqual([
      "accepted 3",
      "deliver a: again",
    ]);
  });

  test("a call that has ended cannot put; a new producer begins a fresh stream of the same id", () => {
    const channel = channelOf({}, { p: "sink", a: "source" });
    channel.close({ call: "p", outcome: ok });
    expect(lines(channel.put({ call: "p", put: 1, items: items("late"), nowMs }))).toEqual([
      "refused 1: channel.closed",
    ]);
    channel.open({ call: "q", worker: "q", role: "sink", stream: 1 });
    channel.put({ call: "q", put: 2, items: items("fresh"), nowMs });
    expect(lines(channel.take({ call: "a", take: 3, nowMs }))).toEqual(["end a"]);
    channel.open({ call: "b", worker: "b", role: "source", stream: 1 });
    expect(lines(channel.take({ call: "b", take: 4, nowMs }))).toEqual(["deliver b: fresh"]);
  });

  test("two puts of the runner in a row reach one consumer, which then ends", () => {
    const channel = channelOf({}, {});
    for (const call of ["put 1", "put 2"]) {
      channel.open({ call, worker: "runner", role: "sink", stream: 1 });
      channel.put({ call, put: call, items: items(call), nowMs });
      channel.close({ call, outcome: ok });
    }
    channel.open({ call: "a", worker: "a", role: "source", stream: 1 });
    expect(lines(channel.take({ call: "a", take: 3, nowMs }))).toEqual(["deliver a: put 1 put 2"]);
    channel.ack({ call: "a" });
    expect(lines(channel.take({ call: "a", take: 4, nowMs }))).toEqual(["end a"]);
    channel.close({ call: "a", outcome: ok });
    expect(channel.snapshot().streams).toEqual([]);
  });
});

describe("C5 policies", () => {
  test("priority delivers the highest first and put order among equals", () => {
    const channel = channelOf({ policy: priority }, { p: "sink", a: "source" });
    const ranked = [1, 5, 3, 5].map((rank, i) => ({ payload: `${rank}${"abcd"[i]}`, priority: rank, sizeBytes: 1 }));
    channel.put({ call: "p", put: 1, items: ranked, nowMs });
    expect(lines(channel.take({ call: "a", take: 2, nowMs }))).toEqual(["deliver a: 5b 5d 3c 1a"]);
  });

  test("least-loaded balances weight over the consumers that wait", () => {
    const channel = channelOf({ policy: leastLoaded }, { p: "sink", a: "source", b: "source" });
    channel.take({ call: "a", take: 1, nowMs });
    channel.take({ call: "b", take: 2, nowMs });
    const weighted = [8, 1, 2, 3, 4, 5].map((weight) => ({ payload: `w${weight}`, weight, sizeBytes: 1 }));
    expect(lines(channel.put({ call: "p", put: 3, items: weighted, nowMs }))).toEqual([
      "accepted 3",
      "deliver a: w8 w5",
      "deliver b: w1 w2 w3 w4",
    ]);
  });

  test("a custom policy selects among candidates, and cannot hold items back once the producers have ended", () => {
    const onlyLong = {
      name: "only-long",
      select: (all: readonly { weight: number }[]) => all.flatMap((item, i) => (item.weight > 5 ? [i] : [])),
    };
    const channel = channelOf({ policy: onlyLong }, { p: "sink", a: "source" });
    const weighted = [1, 9, 2, 8].map((weight) => ({ payload: `w${weight}`, weight, sizeBytes: 1 }));
    channel.put({ call: "p", put: 1, items: weighted, nowMs });
    expect(lines(channel.take({ call: "a", take: 2, nowMs }))).toEqual(["deliver a: w9 w8"]);
    expect(lines(channel.take({ call: "a", take: 3, nowMs }))).toEqual([]);
    expect(lines(channel.close({ call: "p", outcome: ok }))).toEqual(["deliver a: w1 w2"]);
  });
});

describe("C6 transactional outputs", () => {
  test("staged outputs appear with the commit, in order, and vanish if the call is abandoned first", () => {
    const channel = channelOf({}, { t: "sink", a: "source" });
    channel.take({ call: "a", take: 1, nowMs });
    expect(lines(channel.put({ call: "t", put: 2, items: items("lost"), staged: true, nowMs }))).toEqual([
      "accepted 2",
    ]);
    expect(lines(channel.abandon({ calls: ["t"] }))).toEqual([]);
    channel.retry({ call: "t", worker: "t" });
    channel.put({ call: "t", put: 3, items: items("first"), staged: true, nowMs });
    channel.put({ call: "t", put: 4, items: items("second"), staged: true, nowMs });
    expect(lines(channel.commit({ call: "t" }))).toEqual(["deliver a: first second"]);
  });

  test("a transaction larger than the capacity does not block itself, nor two of them one another", () => {
    const channel = channelOf({ capacity: { items: 2 } }, { s: "sink", t: "sink" });
    for (const call of ["s", "t", "s", "t"]) {
      const effects = channel.put({ call, put: call, items: items(call, call), staged: true, nowMs });
      expect(lines(effects)).toEqual([`accepted ${call}`]);
    }
  });

  test("outputs whose inputs are acknowledged outlive the death of the call, even without credit yet", () => {
    const channel = channelOf({ capacity: { items: 1 } }, { p: "sink", t: "sink", a: "source" });
    channel.put({ call: "p", put: 1, items: items("queued"), nowMs });
    channel.put({ call: "t", put: 2, items: items("output"), staged: true, nowMs });
    channel.commit({ call: "t" });
    channel.abandon({ calls: ["t"] });
    expect(lines(channel.take({ call: "a", take: 3, max: { items: 2 }, min: 2, nowMs }))).toEqual([
      "accepted 2",
      "deliver a: queued output",
    ]);
  });
});

test("a snapshot shows who waits for whom, for hang reports", () => {
  const channel = channelOf({ capacity: { items: 1 } }, { p: "sink", a: "source" });
  channel.put({ call: "p", put: 1, items: items("one", "two"), nowMs: 5 });
  channel.take({ call: "a", take: 2, max: { items: 1 }, nowMs: 6 });
  channel.take({ call: "a", take: 3, min: 4, nowMs: 7 });
  expect(channel.snapshot()).toEqual({
    channel: "episodes",
    usedItems: 2,
    usedBytes: 2,
    credit: [{ stream: 1, usedItems: 2, usedBytes: 2, overdrawnItems: 1 }],
    streams: [
      {
        stream: 1,
        state: "open",
        queuedItems: 1,
        queuedWeight: 1,
        queuedBytes: 1,
        stagedItems: 0,
        inFlight: [{ worker: "a", items: 1, weight: 1 }],
        waitingTakes: [{ take: 3, call: "a", worker: "a", sinceMs: 7, min: 4, key: undefined, isWorking: false }],
        waitingPuts: [],
        producers: [{ call: "p", worker: "p" }],
        consumers: [{ call: "a", worker: "a" }],
      },
    ],
  });
});
