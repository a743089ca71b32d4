/** `asTheyCome`: what there is, before whoever makes the items is done, in order, each once, until the stream ends. */
import type { ItemBlock, TakeRequest } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { z } from "zod";
import { Exchange } from "../../packages/core/src/runner/exchange.ts";
import type { Answer } from "../../packages/core/src/runner/runner-messages.ts";
import { type HomePort, packItems, SourceClient } from "../../packages/runtime/src/author/channel/channel-client.ts";

const [making, gathering] = ["1/0", "2/0"];
const stream = "step-1";
const ref = {
  $channel: "made",
  role: "source" as const,
  granularity: "all" as const,
  schema: { module: "unused", exportName: "unused" },
};

function stage() {
  const settled = new Map<number, (answer: Answer) => void>();
  let lastRequest = 0;
  const exchange = new Exchange({
    lockTimeoutMs: Number.POSITIVE_INFINITY,
    onPolicyFailed: (error) => {
      throw error;
    },
    onProgress: () => {},
    onSwap: () => {},
    emit: (effect) => {
      if (effect.type !== "answer") return;
      settled.get(effect.request)?.(effect.answer);
    },
  });
  const ask = (start: (request: number) => void): Promise<Answer> => {
    const request = ++lastRequest;
    return new Promise((resolve) => {
      settled.set(request, resolve);
      start(request);
    });
  };
  for (const worker of ["maker", "gatherer"]) exchange.addWorker(worker, []);
  exchange.define("asked", 1000, "fifo");
  exchange.define("made", 1000, "fifo");
  const made = (role: "source" | "sink") => ({ channel: "made", role, stream }) as const;
  const asked = (role: "source" | "sink") => ({ channel: "asked", role, stream }) as const;
  exchange.openOwn("runner:asked:1", asked("sink"));
  exchange.openCall({ call: making, worker: "maker", sequence: 1, ends: [asked("source"), made("sink")] });
  exchange.openCall({ call: gathering, worker: "gatherer", sequence: 2, ends: [made("source")] });
  const port: HomePort = {
    put: async () => {},
    take: async ({ key: _, ...request }: TakeRequest) => {
      const answer = await ask((id) => exchange.take({ type: "take", request: id, ...request }));
      if (answer.type !== "batch") return null;
      const items = answer.items.map(({ payload }) => payload as number);
      const block = packItems(items, { ...ref, role: "sink" }, z.number()) as ItemBlock;
      return { blocks: [block] };
    },
  };
  return { exchange, ask, source: new SourceClient<number>(ref, port, () => gathering) };
}

test("whatever is made at a time is taken before the rest is made, in order, and all of it", async () => {
  const parts = fc.array(fc.integer({ min: 1, max: 4 }), { minLength: 1, maxLength: 6 });
  await fc.assert(
    fc.asyncProperty(parts, async (sizes) => {
      const { exchange, ask, source } = stage();
      const total = sizes.reduce((sum, size) => sum + size, 0);
      const items = Array.from({ length: total }, (_, payload) => ({ payload, sizeBytes: 1 }));
      await ask((request) => exchange.put({ type: "put", request, call: "runner:asked:1", channel: "asked", items }));
      exchange.closeCall("runner:asked:1", { ok: true });
      const taken = await ask((request) =>
        exchange.take({
          ...{ type: "take", request, call: making, channel: "asked", maxItems: total, minItems: total },
          ...{ acknowledge: false, streams: true },
        }),
      );
      const held = taken.type === "batch" ? [...taken.items] : [];
      expect(held).toHaveLength(total);
      const got: number[] = [];
      for (const size of sizes) {
        const part = held.splice(0, size);
        const [deliveries, outputs] = [
          part.map(({ delivery }) => delivery),
          part.map(({ payload }) => ({ payload, sizeBytes: 1 })),
        ];
        const from = { worker: "maker", incarnation: 0 };
        const commit = { type: "commit", from, call: making, channel: "asked", deliveries } as const;
        void ask((request) => exchange.commit({ ...commit, request, outputs: { channel: "made", items: outputs } }));
        // Nothing else is made before this is taken.
        got.push(...((await source.take({ asTheyCome: true, acknowledge: "call" })) ?? []));
        expect(got).toHaveLength(total - held.length);
      }
      exchange.closeCall(making, { ok: true });
      expect(await source.take({ asTheyCome: true, acknowledge: "call" })).toBeUndefined();
      expect(got).toEqual(items.map(({ payload }) => payload));
    }),
    { numRuns: 40 },
  );
});

test.each([{ gang: true }, { items: 3 }])("it is refused beside %o", async (other) => {
  const { source } = stage();
  await expect(source.take({ asTheyCome: true, ...other })).rejects.toMatchObject({ code: "workflow.invalid" });
});
