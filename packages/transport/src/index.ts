export { type Address, maxUnixPathBytes, type ParsedAddress, parseAddress } from "./address.ts";
export { Canceller } from "./canceller.ts";
export { systemClock } from "./clock.ts";
export { Decoder, decodeItem, type Encoded, Encoder, encodeItem, type PlacedItem, placeItem } from "./codec.ts";
export { localControlPlanes } from "./control-plane/local-control-plane.ts";
export { openNatsControlPlane } from "./control-plane/nats-control-plane.ts";
export { NatsRunStore, type NatsRunStoreOptions } from "./control-plane/nats-run-store.ts";
export type { NatsControlPlaneOptions } from "./control-plane/open-nats-connection.ts";
export {
  type Endpoint,
  type EndpointOptions,
  type LinkTraffic,
  openEndpoint,
  type SegmentOptions,
} from "./endpoint.ts";
export { decodeItems, type ItemBlock, ItemEncoder, type KeepLarge, type KeptItem, type Shapes } from "./item-batch.ts";
export { memoryLinkPair } from "./memory-link.ts";
export { PayloadReader, PayloadStore, type PayloadStoreOptions } from "./payloads.ts";
export { createPeer, type PeerOptions } from "./peer.ts";
export { dropIdleMemory, giveMemory, releaseArrays } from "./received-arrays.ts";
export { openRelay, type Relay, type RelayOptions } from "./relay/relay.ts";
export { replaceFile } from "./replace-file.ts";
export { removeSegment, removeSegments } from "./shared-memory.ts";
export { defaultLinkLimits, type LinkLimits } from "./socket-link.ts";
