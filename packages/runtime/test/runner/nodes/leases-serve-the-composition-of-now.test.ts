/** A run's end of its pool, between two compositions of the run: what it asks for is what its lock of now asks for. */
import type { PoolReply, PoolRequest } from "@treadle/contracts";
import { afterEach, expect, test } from "vitest";
import { PoolClient } from "../../../src/runner/nodes/pool-client.ts";

type Loop = Parameters<PoolClient["serve"]>[0];

const clients: PoolClient[] = [];
afterEach(() => {
  for (const client of clients.splice(0)) client.close();
});

function pooledRun() {
  const sent: PoolRequest[] = [];
  let reply: (message: PoolReply) => void = () => {};
  const client = new PoolClient({
    send: (request) => sent.push(request),
    onReply: (listener) => {
      reply = listener;
    },
    onLost: () => {},
  });
  clients.push(client);
  let lastToken = 0;
  const grant = (...devices: string[]) => reply({ type: "granted", lease: { token: ++lastToken, devices } });
  const said = () => sent.splice(0).map((each) => (each.type === "request" ? each.devices : each));
  return { client, grant, said };
}

/** What a composition asks, and what it is told. */
function composition(client: PoolClient) {
  const acts = new Map<string, (effect: never) => void>();
  const told: unknown[] = [];
  const loop = {
    on: (type: string, act: (effect: never) => void) => acts.set(type, act),
    feed: (input: unknown) => told.push(input),
  };
  client.serve(loop as unknown as Loop);
  return {
    ask: (...devices: string[]) => acts.get("ask-lease")?.({ devices } as never),
    leases: () => told.splice(0).map((input) => (input as { lease: { devices: string[] } }).lease.devices),
    leave: () => client.leave(loop as unknown as Loop),
  };
}

test("leases of several sets of devices are asked for, granted and given back by themselves", () => {
  const { client, grant, said } = pooledRun();
  const only = composition(client);
  only.ask("gpu:0");
  only.ask("gpu:1", "gpu:2");
  expect(said()).toEqual([["gpu:0"], ["gpu:1", "gpu:2"]]);
  grant("gpu:1", "gpu:2");
  grant("gpu:0");
  expect(only.leases()).toEqual([["gpu:1", "gpu:2"], ["gpu:0"]]);
  only.leave();
  expect(said()).toEqual([
    { type: "release", token: 1 },
    { type: "release", token: 2 },
  ]);
});

test("what a composition had asked for serves the next one where that asks for the same", () => {
  const { client, grant, said } = pooledRun();
  const first = composition(client);
  first.ask("gpu:0");
  first.leave();
  const second = composition(client);
  second.ask("gpu:0");
  expect(said()).toEqual([["gpu:0"]]);
  grant("gpu:0");
  expect([first.leases(), second.leases()]).toEqual([[], [["gpu:0"]]]);
});

test("what nobody asks for any more goes back when it is granted, and what overlaps it is asked for then", () => {
  const { client, grant, said } = pooledRun();
  const first = composition(client);
  first.ask("gpu:0");
  first.leave();
  const second = composition(client);
  second.ask("gpu:0", "gpu:1");
  expect(said()).toEqual([["gpu:0"]]);
  grant("gpu:0");
  expect(said()).toEqual([{ type: "release", token: 1 }, ["gpu:0", "gpu:1"]]);
  grant("gpu:0", "gpu:1");
  expect(second.leases()).toEqual([["gpu:0", "gpu:1"]]);
});
