import { describe, expect, it } from "vitest";
import { createPeer, memoryLinkPair } from "../src/index.ts";

describe("peer over a memory link", () => {
  it("answers a request", async () => {
    const [left, right] = memoryLinkPair();
    createPeer(right).handle("double", (body) => (body as number) * 2);
    await expect(createPeer(left).request("double", 21)).resolves.toBe(42);
  });
});
