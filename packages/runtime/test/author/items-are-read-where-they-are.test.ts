import { type KeptItem, type Link, runProtocol } from "@treadle/contracts";
import { createPeer, encodeItem, memoryLinkPair, type PayloadReader } from "@treadle/transport";
import { expect, test } from "vitest";
import { DistantPayloads } from "../../src/author/channel/distant-payloads.ts";

const sizeBytes = encodeItem("x").byteLength;

/** This node is `here`; each of the others holds what is listed, or nothing that answers. */
function setUp(nodes: Readonly<Record<string, readonly string[] | "gone">>) {
  const asked: string[] = [];
  const letGo: string[] = [];
  const connect = async ([node = ""]: string | readonly string[]): Promise<Link> => {
    asked.push(node);
    const held = nodes[node];
    if (held === undefined || held === "gone") throw new Error(`nobody answers at '${node}'`);
    const [near, far] = memoryLinkPair();
    createPeer(far, runProtocol).handle("payload.read", ({ segment }) => {
      if (!held.includes(segment)) throw new Error(`no '${segment}' at '${node}'`);
      return encodeItem(`${segment} of ${node}`);
    });
    return near;
  };
  const depots = async () => Object.keys(nodes).map((node) => ({ node, addresses: [node], consumes: false }));
  const distant = new DistantPayloads({
    node: "here",
    endpoint: { connect },
    depots,
    letGo: (segment) => letGo.push(segment),
  });
  const reader = { read: (segment: string) => `${segment} of here` } as unknown as PayloadReader;
  const read = async (...kept: KeptItem[]) => {
    const readKept = await distant.locate("items", kept, reader);
    return kept.map((item) => readKept(item));
  };
  return { asked, letGo, read };
}

test("DP2: what lies on this node, as the item or its copy, is read here and nobody is asked", async () => {
  const { asked, letGo, read } = setUp({ a: ["one", "two"] });
  const items = [
    { segment: "one", sizeBytes, node: "here", copy: { node: "a", segment: "copy-of-one" } },
    { segment: "two", sizeBytes, node: "a", copy: { node: "here", segment: "copy-of-two" } },
  ] as KeptItem[];
  expect(await read(...items)).toEqual(["one of here", "copy-of-two of here"]);
  expect([asked, letGo]).toEqual([[], []]);
});

test("DP2: what lies elsewhere is read from its node, or else from the one that has its copy", async () => {
  const item = { segment: "one", sizeBytes, node: "a", copy: { node: "b", segment: "copy" } } as KeptItem;
  const first = setUp({ a: ["one"], b: ["copy"] });
  expect(await first.read(item)).toEqual(["one of a"]);
  expect([first.asked, first.letGo]).toEqual([["a"], ["one"]]);
  const second = setUp({ a: "gone", b: ["copy"] });
  expect(await second.read(item)).toEqual(["copy of b"]);
  expect([second.asked, second.letGo]).toEqual([["a", "b"], ["one"]]);
  const neither = setUp({ b: [] });
  await expect(neither.read(item)).rejects.toMatchObject({ code: "node.lost" });
  expect(neither.letGo).toEqual(["one"]);
});
