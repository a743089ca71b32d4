/**
 * Large items as the runner has to do with them: those that it puts and takes itself, and the memory of those that are
 * used up, wherever it is.
 */
import type { PayloadEffect } from "@treadle/core";
import { runnerName } from "@treadle/core";
import { PayloadReader, PayloadStore, removeSegment } from "@treadle/transport";
import type { Payloads } from "../../author/channel/channel-client.ts";
import { DistantPayloads } from "../../author/channel/distant-payloads.ts";
import { keptPrefix } from "../../author/channel/kept-prefix.ts";
import type { Nodes } from "../nodes/nodes.ts";
import { tell } from "./call-desk.ts";
import type { Fleet } from "./fleet.ts";
import type { RunnerLinks } from "./runner-links.ts";

export type RunnerPayloadsPorts = {
  readonly nodes: Nodes;
  readonly fleet: Pick<Fleet, "depots" | "peerOf">;
  readonly links: Pick<RunnerLinks, "connect" | "segmentPrefix">;
  /** the runner has read an item to its end */
  readonly onRead: (segment: string) => void;
};

export class RunnerPayloads {
  /** a runner that is no node keeps nothing itself */
  readonly ends: Payloads;
  readonly #ports: RunnerPayloadsPorts;

  constructor(ports: RunnerPayloadsPorts) {
    this.#ports = ports;
    const { nodes, links, onRead, fleet } = ports;
    const { segmentPrefix } = links;
    this.ends = nodes.isLocal
      ? {
          store: new PayloadStore(keptPrefix(segmentPrefix, runnerName, 0)),
          reader: new PayloadReader(keptPrefix(segmentPrefix), onRead),
        }
      : {
          distant: new DistantPayloads({
            node: nodes.home,
            endpoint: links,
            depots: async (channel) => fleet.depots(channel, nodes.home),
            letGo: onRead,
          }),
        };
  }

  /** A large item has been used up by all: its memory goes back to its producer, or is removed with it. */
  freed(effect: PayloadEffect): void {
    const segments = [effect.segment];
    if (effect.type === "remove") this.#remove(effect);
    else if (effect.producer === runnerName) this.ends.store?.reuse(segments);
    else tell(this.#ports.fleet.peerOf(effect.producer), "segments.reuse", { segments });
  }

  close(): void {
    this.ends.store?.close();
  }

  #remove({ node, segment }: Extract<PayloadEffect, { type: "remove" }>): void {
    const addresses = node === undefined ? undefined : this.#ports.nodes.depots.get(node);
    if (node === undefined) removeSegment(segment);
    else if (addresses) this.ends.distant?.free({ addresses }, [{ segment }]);
  }
}
