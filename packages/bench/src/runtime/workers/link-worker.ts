import type { Peer } from "@treadle/contracts";
import { Worker } from "@treadle/runtime";
import { createPeer, type Endpoint, openEndpoint } from "@treadle/transport";
import { openProtocol } from "@treadle/transport/testing";
import { smallItem } from "../items.ts";

const words = openProtocol(["received"], ["item"]);
const run = { runId: "bench-link", token: "the secret of one benchmark" };

/** One end of a bare link, without channels and calls. */
export class LinkWorker extends Worker<Record<string, never>> {
  static override readonly module = import.meta.url;
  #endpoint: Endpoint | undefined;
  #peer: Peer<typeof words> | undefined;

  async listen(): Promise<string> {
    this.#endpoint = await openEndpoint({
      name: "far",
      ...run,
      tcp: { port: 0 },
      unixPath: `/tmp/treadle-link-${process.pid}`,
    });
    this.#endpoint.onLink((link) => {
      let received = 0;
      const peer = createPeer(link, words);
      peer.handle("item", () => {
        received++;
      });
      peer.handle("received", () => received);
    });
    return this.#endpoint.addresses[0] as string;
  }

  async connect(address: string): Promise<void> {
    this.#endpoint = await openEndpoint({ name: "near", ...run });
    this.#peer = createPeer(await this.#endpoint.connect(address), words);
  }

  /** Sends `count` notifications and waits until all have arrived. */
  async flood(count: number, sizeBytes: number): Promise<void> {
    const peer = this.#peer as Peer<typeof words>;
    const item = smallItem(1, sizeBytes);
    for (let index = 0; index < count; index++) {
      peer.notify("item", item);
      if (index % 256 === 255) await peer.link.drained();
    }
    await peer.request("received", null);
  }

  override async teardown(): Promise<void> {
    await this.#endpoint?.close();
  }
}
