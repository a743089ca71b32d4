import { readdirSync } from "node:fs";
import { join } from "node:path";
import { type Link, runPrefix } from "@treadle/contracts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type Endpoint, openEndpoint, releaseArrays } from "../src/index.ts";
import { sharedMemory } from "../src/memory/shared-memory.ts";
import { folder, token } from "./support/endpoints.ts";
import { closed, inbox } from "./support/link-contract.ts";

const runId = `transport-together-${process.pid}`;
const segmentFiles = () => readdirSync("/dev/shm").filter((name) => name.startsWith(runPrefix(runId)));
const inPlace = 32 * 1024 * 1024;
const copiedOut = 2 * 1024 * 1024;

describe.skipIf(sharedMemory() === undefined)("messages that are sent together", () => {
  let where: Awaited<ReturnType<typeof folder>>;
  let sender: Endpoint;
  let receivers: Endpoint[];
  let links: Link[];
  let ends: Link[];
  let inboxes: ReturnType<typeof inbox>[];
  let told: ReturnType<typeof inbox>[];

  beforeEach(async () => {
    where = await folder();
    sender = await openEndpoint({ name: "sender", runId, token });
    [receivers, links, ends, inboxes, told] = [[], [], [], [], []];
    for (const name of ["a", "b", "c"]) {
      const receiver = await openEndpoint({ name, runId, token, unixPath: join(where.path, name) });
      const accepted = new Promise<Link>((resolve) => receiver.onLink(resolve));
      receivers.push(receiver);
      const link = await sender.connect(receiver.addresses, { expect: name });
      links.push(link);
      told.push(inbox(link));
      const end = await accepted;
      ends.push(end);
      inboxes.push(inbox(end));
    }
  });
  afterEach(async () => {
    await Promise.all([sender, ...receivers].map((each) => each.close()));
    expect(segmentFiles()).toEqual([]);
    await where.dispose();
  });

  /** What the receivers got of one round. */
  async function round(number: number, sizeBytes: number, to = links): Promise<{ at: number; data: Float32Array }[]> {
    const data = new Float32Array(sizeBytes / 4).fill(number);
    const together = {};
    for (const [at, link] of to.entries()) link.send({ at, data }, { together });
    const all = await Promise.all(to.map((link) => inboxes[links.indexOf(link)]?.atLeast(number) ?? []));
    return all.map((messages) => messages[number - 1] as { at: number; data: Float32Array });
  }

  /** Releases what a receiver got, and returns when the sender knows. */
  async function release(message: unknown, at: number): Promise<void> {
    releaseArrays(message);
    await new Promise((resolve) => setImmediate(resolve));
    const numTold = told[at]?.messages.length ?? 0;
    ends[at]?.send("released");
    await told[at]?.atLeast(numTold + 1);
  }

  it.each([copiedOut, inPlace])("of %i bytes are written once, and each receiver has its own", async (sizeBytes) => {
    for (const number of [1, 2, 3, 4]) {
      const got = await round(number, sizeBytes);
      expect(got.map(({ at }) => at)).toEqual([0, 1, 2]);
      if (number === 1) expect(segmentFiles()).toHaveLength(1);
      const [{ data: written }] = got as [(typeof got)[0]];
      if (number < 3) written[written.length - number] = -1; // SX4: one page of it, in a mapping that is kept or undone
      for (const { data } of number < 3 ? got.slice(1) : got)
        expect(data.every((value) => value === number)).toBe(true);
      for (const [at, message] of got.entries()) await release(message, at);
    }
  });

  it("serve the next round once all have given them back, and not before (SP1)", async () => {
    const [a, b, c] = await round(1, inPlace);
    await release(a, 0);
    await release(b, 1);
    const second = await round(2, inPlace);
    expect(c?.data.every((value) => value === 1)).toBe(true);
    expect(segmentFiles()).toHaveLength(2);
    await release(c, 2);
    for (const [at, message] of second.entries()) await release(message, at);
    await round(3, inPlace);
    expect(segmentFiles()).toHaveLength(2);
  });

  it("stay whole for the others when one receiver goes, and go with the last (SX1)", async () => {
    const [, b, c] = await round(1, inPlace);
    const lost = closed(links[0] as Link);
    await ends[0]?.close(new Error("gone"));
    await lost;
    expect(segmentFiles()).toHaveLength(1); // whoever has not opened it yet still finds it
    for (const each of [b, c]) expect(each?.data.every((value) => value === 1)).toBe(true);
    await release(b, 1);
    await release(c, 2);
    expect(segmentFiles()).toEqual([]);
    const next = await round(2, inPlace, links.slice(1));
    expect(next.every(({ data }) => data.every((value) => value === 2))).toBe(true);
  });
});
