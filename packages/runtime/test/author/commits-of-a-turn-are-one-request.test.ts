import { type CommitRequest, type ItemBlock, type PutRequest, TreadleError } from "@treadle/contracts";
import { expect, test } from "vitest";
import { z } from "zod";
import { type HomePort, SinkClient, unpackItems } from "../../src/author/channel/channel-client.ts";

const ref = {
  $channel: "out",
  role: "sink" as const,
  granularity: "all" as const,
  schema: { module: "unused", exportName: "unused" },
};

type Told = { readonly call?: string; readonly deliveries?: readonly number[]; readonly items: readonly number[] };

/** A home that notes what it is told, and refuses what has a number that it does not want. */
function home(refused?: number) {
  const told: Told[] = [];
  const itemsOf = (block: ItemBlock | undefined) => (block ? unpackItems<number>({ blocks: [block] }) : []);
  const port: HomePort = {
    put: async ({ items }: PutRequest) => void told.push({ items: itemsOf(items) }),
    take: async () => null,
    commit: async ({ call, deliveries, outputs }: CommitRequest) => {
      const items = itemsOf(outputs?.items);
      if (refused !== undefined && items.includes(refused))
        throw new TreadleError("call.cancelled", "refused by the home");
      told.push({ call, deliveries, items });
    },
  };
  const sink = new SinkClient<number>(ref, z.number(), port, () => "1/0");
  const commit = (delivery: number, items: readonly unknown[], call = "1/0") =>
    sink.commit({ channel: "in", call, deliveries: [delivery] }, items as number[]);
  return { told, sink, commit };
}

test("C6: what is committed in one turn is one request, in order, and what is put behind it comes behind it", async () => {
  const { told, sink, commit } = home();
  const before = [commit(4, [40, 41]), commit(2, [20])];
  const put = sink.put(1);
  await Promise.all([...before, put, commit(3, []), commit(1, [10]), commit(7, [70], "2/0")]);
  await commit(5, [50]);
  expect(told).toEqual([
    { call: "1/0", deliveries: [4, 2], items: [40, 41, 20] },
    { items: [1] },
    { call: "1/0", deliveries: [3, 1], items: [10] },
    { call: "2/0", deliveries: [7], items: [70] },
    { call: "1/0", deliveries: [5], items: [50] },
  ]);
});

test("an item that cannot leave fails its own commit alone; a request that is refused fails all that it has", async () => {
  const { told, commit } = home(9);
  const codeOf = (committing: Promise<void>) =>
    committing.then(
      () => undefined,
      ({ code }: TreadleError) => code,
    );
  const codes = [commit(0, [1]), commit(1, ["bad"]), commit(2, [3])].map(codeOf);
  expect(await Promise.all(codes)).toEqual([undefined, "channel.invalid-item", undefined]);
  expect(told).toEqual([{ call: "1/0", deliveries: [0, 2], items: [1, 3] }]);
  expect(await Promise.all([commit(3, [4]), commit(4, [9])].map(codeOf))).toEqual(["call.cancelled", "call.cancelled"]);
  expect(told).toHaveLength(1);
});
