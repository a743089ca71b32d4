import { type CommitRequest, type KeptItem, type PackedItems, type PutRequest, TreadleError } from "@treadle/contracts";
import { decodeItem, type PayloadStore, type PlacedItem } from "@treadle/transport";
import fc from "fast-check";
import { expect, test } from "vitest";
import { z } from "zod";
import { type HomePort, SinkClient, unpackItems } from "../../src/author/channel/channel-client.ts";
import type { DistantPayloads } from "../../src/author/channel/distant-payloads.ts";

const inlineLimitBytes = 512;
const ref = {
  $channel: "out",
  role: "sink" as const,
  granularity: "all" as const,
  schema: { module: "unused", exportName: "unused" },
  inlineLimitBytes,
};
const Item = z.object({ id: z.number(), value: z.unknown().optional() });
type Item = z.infer<typeof Item>;

/** What makes an item large, unfit or impossible to send. */
const make = {
  small: (id: number): unknown => ({ id }),
  large: (id: number): unknown => ({ id, value: "x".repeat(2 * inlineLimitBytes) }),
  array: (id: number): unknown => ({ id, value: new Float32Array(2 * inlineLimitBytes) }),
  unfit: (): unknown => ({ id: "bad" }),
  unencodable: (id: number): unknown => ({ id, value: () => 1 }),
};
type Kind = keyof typeof make;
const codes: { readonly [kind in Kind]?: string } = {
  unfit: "channel.invalid-item",
  unencodable: "link.unsupported-value",
};

/** Memory of this process, which knows what is in use. */
class Memory {
  readonly inUse = new Map<string, Uint8Array>();
  #numWritten = 0;

  write(item: PlacedItem): string {
    const bytes = new Uint8Array(item.sizeBytes);
    item.writeTo(bytes);
    const name = `s${this.#numWritten++}`;
    this.inUse.set(name, bytes);
    return name;
  }

  reuse(names: readonly string[]): void {
    for (const name of names) expect(this.inUse.delete(name), `'${name}' is in use`).toBe(true);
  }
}

/** `room`: what each answer waits for. `copies`: to other nodes; of each copy, whether there is one and after how many turns. */
function home(room: () => Promise<void> = async () => {}, copies?: () => { isThere: boolean; turns: number }) {
  const got: number[] = [];
  const acknowledged: number[] = [];
  const kept = new Set<string>();
  const memory = new Memory();
  const arrive = async (items: PackedItems | undefined) => {
    for (const { segment } of items?.kept ?? []) kept.add(segment);
    const read = ({ segment }: Pick<KeptItem, "segment">) => decodeItem(memory.inUse.get(segment)!);
    if (items) got.push(...unpackItems<Item>({ blocks: [items] }, read).map(({ id }) => id));
    await room();
  };
  const copy = async (_: string, items: readonly KeptItem[]) => {
    const { isThere, turns } = copies!();
    for (let turn = 0; turn < turns; turn++) await Promise.resolve();
    return isThere ? [...items] : undefined;
  };
  const port: HomePort = {
    put: ({ items }: PutRequest) => arrive(items),
    take: async () => null,
    commit: ({ deliveries, outputs }: CommitRequest) => {
      acknowledged.push(...deliveries);
      return arrive(outputs?.items);
    },
    payloads: {
      store: memory as unknown as PayloadStore,
      distant: copies && ({ copy } as unknown as DistantPayloads),
    },
  };
  const sink = new SinkClient<Item>(ref, Item as z.ZodType<Item>, port, () => "1/0");
  return { got, acknowledged, kept, memory, sink };
}

const codeOf = (sending: Promise<void>): Promise<string | undefined> =>
  sending.then(
    () => undefined,
    (error: unknown) => (error instanceof TreadleError ? error.code : String(error)),
  );

const kinds = fc.array(
  fc.oneof(
    { weight: 6, arbitrary: fc.constantFrom<Kind>("small", "large", "array") },
    { weight: 1, arbitrary: fc.constantFrom<Kind>("unfit", "unencodable") },
  ),
  { maxLength: 3 },
);
const steps = fc.array(
  fc.oneof(
    { weight: 6, arbitrary: fc.record({ step: fc.constant("commit" as const), kinds, call: fc.nat(1) }) },
    { weight: 2, arbitrary: fc.record({ step: fc.constant("put" as const), kinds }) },
    { weight: 1, arbitrary: fc.record({ step: fc.constant("turn" as const), turns: fc.integer({ min: 1, max: 4 }) }) },
  ),
  { maxLength: 30 },
);
const copies = fc.infiniteStream(fc.record({ isThere: fc.boolean(), turns: fc.nat(3) }));

test("C2, C6: whatever of it cannot leave, what is put and committed arrives as if each were a request of its own", async () => {
  await fc.assert(
    fc.asyncProperty(steps, fc.option(copies, { nil: undefined }), async (script, copied) => {
      const { got, acknowledged, kept, memory, sink } = home(undefined, copied && (() => copied.next().value!));
      const ids: number[] = [];
      const deliveries: number[] = [];
      const told: Promise<string | undefined>[] = [];
      const wanted: (string | undefined)[] = [];
      for (const [at, one] of script.entries()) {
        if (one.step === "turn") {
          for (let turn = 0; turn < one.turns; turn++) await Promise.resolve();
          continue;
        }
        const items = one.kinds.map((kind, index) => make[kind](10 * at + index)) as Item[];
        const unfit = one.kinds.find((kind) => kind === "unfit") ?? one.kinds.find((kind) => kind === "unencodable");
        wanted.push(unfit && codes[unfit]);
        if (!unfit) ids.push(...items.map(({ id }) => id));
        if (!unfit && one.step === "commit") deliveries.push(at);
        const commit = { channel: "in", call: `${one.step === "commit" ? one.call : 0}/0`, deliveries: [at] };
        told.push(codeOf(one.step === "commit" ? sink.commit(commit, items) : sink.put(...items)));
      }
      expect(await Promise.all(told)).toEqual(wanted);
      expect(got).toEqual(ids);
      expect(acknowledged).toEqual(deliveries);
      expect([...memory.inUse.keys()].sort(), "only what has left is kept").toEqual([...kept].sort());
    }),
  );
});

test("what cannot leave fails while those committed with it wait for room", async () => {
  let free = () => {};
  const full = new Promise<void>((resolve) => {
    free = resolve;
  });
  const { got, sink } = home(() => full);
  const commit = (at: number, kind: Kind) =>
    codeOf(sink.commit({ channel: "in", call: "1/0", deliveries: [at] }, [make[kind](at) as Item]));
  const others = [commit(0, "small"), commit(2, "small")];
  expect(await commit(1, "unfit")).toBe("channel.invalid-item");
  expect(got).toEqual([0, 2]);
  free();
  expect(await Promise.all(others)).toEqual([undefined, undefined]);
});
