/**
 * Where one run's large items lie on one node, for processes of other nodes: keeps copies, and answers with what is here.
 *
 * Owner of: the copies that others have sent. Items that the node's own workers keep are read here too, whether or not
 * those workers are busy, or live. Who may read what, and when a segment is free, the channel's home decides.
 */
import { type LinksConfig, type Peer, runProtocol } from "@treadle/contracts";
import type { NodeSpans } from "@treadle/observe";
import {
  createPeer,
  openEndpoint,
  PayloadReader,
  PayloadStore,
  releaseArrays,
  removeSegment,
} from "@treadle/transport";
import { keptPrefix } from "../author/channel/kept-prefix.ts";

export type PayloadDepotOptions = {
  readonly runId: string;
  readonly token: string;
  readonly node: string;
  readonly segmentPrefix: string;
  readonly links: LinksConfig;
  readonly spans: NodeSpans;
};

export type PayloadDepot = { readonly addresses: readonly string[]; close(): Promise<void> };

/** Rejects with `link.refused` when its address cannot be had. */
export async function openPayloadDepot(options: PayloadDepotOptions): Promise<PayloadDepot> {
  const { runId, token, node, segmentPrefix, links, spans } = options;
  const { bind, advertise, tls } = links;
  const keptHere = keptPrefix(segmentPrefix);
  // No worker's name begins with a dot.
  const ownPrefix = `${keptHere}.depot-`;
  const store = new PayloadStore(ownPrefix);
  const reader = new PayloadReader(keptHere, () => {});
  const endpoint = await openEndpoint({
    name: `depot of ${node}`,
    runId,
    token,
    segments: { prefix: segmentPrefix, scope: node },
    tcp: { host: bind, port: 0, advertise },
    tls,
  });
  const serve = (peer: Peer): void => {
    peer.handle("payload.keep", ({ data }) => {
      using _ = spans.span("keep item", "transfer", { run: runId, attributes: { sizeBytes: data.byteLength } });
      const segment = store.write({ sizeBytes: data.byteLength, writeTo: (target) => target.set(data) });
      releaseArrays(data);
      return segment === undefined ? {} : { segment };
    });
    peer.handle("payload.read", ({ segment, sizeBytes }) => {
      using _ = spans.span("read item", "transfer", { run: runId, attributes: { sizeBytes } });
      return reader.readBytes(segment, sizeBytes);
    });
    peer.handle("payload.free", ({ segments }) => {
      for (const segment of segments) {
        if (segment.startsWith(ownPrefix)) store.reuse([segment]);
        else if (segment.startsWith(keptHere) && !segment.includes("/")) removeSegment(segment);
      }
    });
  };
  endpoint.onLink((link) => serve(createPeer(link, runProtocol)));
  return {
    addresses: [...endpoint.addresses],
    close: async () => {
      await endpoint.close();
      store.close();
    },
  };
}
