import { expect, test } from "vitest";
import { Exchange } from "../../src/runner/exchange.ts";
import type { RunnerEffect } from "../../src/runner/runner-messages.ts";

/** A producer on each of two devices, and two consumers of all that they put: `first` on one of the devices, `second` on both. */
function twoConsumers() {
  const effects: RunnerEffect[] = [];
  const exchange = new Exchange({
    lockTimeoutMs: Number.POSITIVE_INFINITY,
    emit: (effect) => effects.push(effect),
    onPolicyFailed: (error) => {
      throw error;
    },
    onProgress: () => {},
    onSwap: (worker, swap) =>
      swap === "onload" ? exchange.onloaded(worker, { memoryBytes: 1 }) : exchange.offloaded(worker),
  });
  const [a, b] = ["cpu:0", "cpu:1"] as const;
  for (const device of [a, b]) exchange.addDevice(device, 100);
  exchange.define("x", 1000, "fifo");
  const open = (call: string, sequence: number, devices: readonly string[], role: "source" | "sink") => {
    exchange.addWorker(call, devices);
    exchange.openCall({ call, worker: call, sequence, ends: [{ channel: "x", role, stream: "step-1" }] });
  };
  open("producer/0", 1, [a], "sink");
  open("producer/1", 1, [b], "sink");
  open("first", 2, [b], "source");
  open("second", 3, [a, b], "source");
  const requests: string[] = [""];
  const ask = (name: string): number => requests.push(name) - 1;
  const acquire = (call: string) => exchange.acquire(ask(`${call} has devices`), call, call);
  const take = (call: string) =>
    exchange.take({ type: "take", request: ask(`${call} has items`), call, channel: "x", acknowledge: true });
  const said = () =>
    effects.splice(0).flatMap((effect) => (effect.type === "answer" ? [requests[effect.request] as string] : []));
  const put = (call: string) => {
    const items = [{ payload: call, sizeBytes: 1 }];
    exchange.put({ type: "put", request: ask(`${call} has put`), call, channel: "x", items });
  };
  return { exchange, acquire, take, put, said };
}

test("EX7: when a stream ends with a reply, who has waited longest for it gets the devices that the reply frees", () => {
  const { exchange, acquire, take, put, said } = twoConsumers();
  for (const call of ["producer/0", "producer/1", "first", "second"]) acquire(call);
  for (const call of ["producer/0", "producer/1"]) put(call);
  exchange.replied("producer/1");
  // It waits for all of the stream, and lends its device meanwhile.
  take("first");
  said();
  // The reply ends the calls of both.
  exchange.closeCalls(["producer/0", "producer/1"].map((call) => ({ call, outcome: { ok: true } })));
  expect(said()).toEqual(["first has items"]);
  exchange.replied("first");
  expect(said()).toEqual(["second has devices"]);
});

test("EX7: a rank that has replied holds no devices, while its fellow ranks go on", () => {
  const { exchange, acquire, take, put, said } = twoConsumers();
  for (const call of ["producer/1", "first"]) acquire(call);
  put("producer/1");
  expect(said()).toEqual(["producer/1 has devices", "producer/1 has put"]);
  exchange.replied("producer/1");
  expect(said()).toEqual(["first has devices"]);
  take("first");
  exchange.closeCalls(["producer/0", "producer/1"].map((call) => ({ call, outcome: { ok: true } })));
  expect(said()).toEqual(["first has items"]);
});
