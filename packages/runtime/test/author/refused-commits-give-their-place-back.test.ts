import { type CommitRequest, type Granularity, type TakeRequest, TreadleError } from "@treadle/contracts";
import { expect, test } from "vitest";
import { z } from "zod";
import { type HomePort, packItems, SinkClient, SourceClient } from "../../src/author/channel/channel-client.ts";

const refOf = (name: string, granularity: Granularity = 1) => ({
  $channel: name,
  role: "source" as const,
  granularity,
  schema: { module: "unused", exportName: "unused" },
});

/** A home with so many numbers, which answers each take with as many as it asks for; all where it asks for no number. */
function home(
  numItems: number,
  refuses: (commit: CommitRequest) => boolean = () => false,
  granularity: Granularity = 1,
) {
  const asked: (number | undefined)[] = [];
  const committed: number[] = [];
  let next = 0;
  const port: HomePort = {
    put: async () => {},
    take: async ({ maxItems }: TakeRequest) => {
      asked.push(maxItems);
      const values = Array.from({ length: Math.min(maxItems ?? numItems, numItems - next) }, () => next++);
      if (values.length === 0) return null;
      return { blocks: [packItems(values, refOf("in"), z.number())], deliveries: values };
    },
    commit: async (commit) => {
      if (refuses(commit)) throw new TreadleError("call.cancelled", "refused by the home");
      committed.push(...commit.deliveries);
    },
  };
  const source = new SourceClient<number>(refOf("in", granularity), port, () => "1/0");
  const sink = new SinkClient<number>(refOf("out"), z.number(), port, () => "1/0");
  return { source, sink, asked, committed };
}

test("an item whose outputs are refused gives its place in flight back, so that the stream goes on", async () => {
  const { source, sink, committed } = home(9);
  const codes: string[] = [];
  for await (const item of source.items({ inFlight: 2 })) {
    const output = item.value % 3 === 0 ? item.value : ("no number" as unknown as number);
    await item.commit(sink, output).catch(({ code }: TreadleError) => codes.push(code));
  }
  expect(committed).toEqual([0, 3, 6]);
  expect(codes).toEqual(Array(6).fill("channel.invalid-item"));
});

test("an item whose outputs were refused is committed with others, once", async () => {
  let isFirst = true;
  const { source, sink, asked, committed } = home(3, () => {
    const refuses = isFirst;
    isFirst = false;
    return refuses;
  });
  for await (const item of source.items({ inFlight: 1 })) {
    if (item.value === 0) {
      await expect(item.commit(sink, "bad" as unknown as number)).rejects.toMatchObject({
        code: "channel.invalid-item",
      });
      await expect(item.commit(sink, 1)).rejects.toMatchObject({ code: "call.cancelled" });
    }
    await item.commit(sink, 1);
    await expect(item.commit(sink, 1)).rejects.toMatchObject({ code: "workflow.invalid" });
    await expect(item.commit()).rejects.toMatchObject({ code: "workflow.invalid" });
  }
  expect(committed).toEqual([0, 1, 2]);
  expect(asked).toEqual([1, 1, 1, 1]); // no place was given back twice
});

test("without a number, as many are in flight as the plan says", async () => {
  const play = async (granularity: Granularity) => {
    const { source, sink, asked, committed } = home(6, () => false, granularity);
    const open: number[] = [];
    let mostOpen = 0;
    for await (const item of source.items()) {
      open.push(item.value);
      mostOpen = Math.max(mostOpen, open.length);
      if (open.length < (granularity === "all" ? 6 : granularity)) continue;
      open.splice(open.indexOf(item.value), 1);
      await item.commit(sink, 1);
    }
    return { asked, mostOpen, numCommitted: committed.length };
  };
  expect(await play(4)).toEqual({ asked: [4, 1, 1, 1], mostOpen: 4, numCommitted: 3 });
  expect(await play("all")).toEqual({ asked: [undefined, undefined], mostOpen: 6, numCommitted: 1 });
});

test("a function says how many may come at once, whatever is in flight, and is refused what is no such number", async () => {
  const { source, asked } = home(6, () => false, 2);
  const open: number[] = [];
  const rooms = [1, 3, 1, 2, 1];
  for await (const { value } of source.items({ inFlight: () => rooms.shift() ?? 1 })) open.push(value);
  expect(open).toEqual([0, 1, 2, 3, 4, 5]);
  expect(asked).toEqual([1, 3, 1, 2, 1]);
  const none = source.items({ inFlight: () => 0 })[Symbol.asyncIterator]();
  await expect(none.next()).rejects.toThrow("'in' was asked for '0' items in flight; give a positive integer");
});
