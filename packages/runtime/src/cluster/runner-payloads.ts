/**
 * Large items as the runner has to do with them: those that it puts and takes itself, and the memory of those that are
 * used up, wherever it is.
 */
import type { Peer } from "@treadle/contracts";
import { PayloadReader, PayloadStore, removeSegment } from "@treadle/transport";
import type { Payloads } from "../channel/channel-client.ts";
import { runnerName } from "../channel/channel-messages.ts";
import { DistantPayloads } from "../channel/distant-payloads.ts";
import { keptPrefix, type PayloadEffect } from "../channel/kept-payloads.ts";
import type { Fleet } from "./fleet.ts";
import type { Nodes } from "./nodes.ts";

export type RunnerPayloadsPorts = {
  readonly nodes: Nodes;
  readonly fleet: () => Pick<Fleet, "connect" | "depots" | "rank">;
  readonly segmentPrefix: string;
  /** the runner has read an item to its end */
  readonly onRead: (segment: string) => void;
};

export class RunnerPayloads {
  /** a runner that is no node keeps nothing itself */
  readonly ends: Payloads;
  readonly #ports: RunnerPayloadsPorts;

  constructor(ports: RunnerPayloadsPorts) {
    this.#ports = ports;
    const { nodes, segmentPrefix, onRead, fleet } = ports;
    this.ends = nodes.isLocal
      ? {
          store: new PayloadStore(keptPrefix(segmentPrefix, runnerName, 0)),
          reader: new PayloadReader(keptPrefix(segmentPrefix), onRead),
        }
      : {
          distant: new DistantPayloads({
            node: nodes.home,
            connect: (addresses) => fleet().connect(addresses),
            depots: async (channel) => fleet().depots(channel, nodes.home),
            letGo: onRead,
          }),
        };
  }

  /** A large item has been used up by all: its memory goes back to its producer, or is removed with it. */
  freed(effect: PayloadEffect): void {
    const segments = [effect.segment];
    if (effect.type === "remove") this.#remove(effect);
    else if (effect.producer === runnerName) this.ends.store?.reuse(segments);
    else this.#tell(this.#ports.fleet().rank(effect.producer)?.control, segments);
  }

  close(): void {
    this.ends.store?.close();
  }

  #tell(producer: Peer | undefined, segments: readonly string[]): void {
    try {
      producer?.notify("segments.reuse", { segments });
    } catch {
      // its link has just ended; the run's end removes the segment
    }
  }

  #remove({ node, segment }: Extract<PayloadEffect, { type: "remove" }>): void {
    const addresses = node === undefined ? undefined : this.#ports.nodes.depots.get(node);
    if (node === undefined) removeSegment(segment);
    else if (addresses) this.ends.distant?.free({ addresses }, [{ segment }]);
  }
}
