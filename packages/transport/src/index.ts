export { systemClock } from "./clock.ts";
export { Decoder, decodeItem, type Encoded, Encoder, encodeItem, type PlacedItem, placeItem } from "./codec/codec.ts";
export {
  decodeItems,
  type ItemBlock,
  ItemEncoder,
  type KeepLarge,
  type KeptItem,
  type Shapes,
} from "./codec/item-batch.ts";
export { dropIdleMemory, giveMemory, releaseArrays, takeMemory } from "./codec/received-arrays.ts";
export { locateUnsupported } from "./codec/typed-arrays.ts";
export { localControlPlanes } from "./control-plane/local-control-plane.ts";
export { openNatsControlPlane } from "./control-plane/nats-control-plane.ts";
export { NatsRunStore, type NatsRunStoreOptions } from "./control-plane/nats-run-store.ts";
export { accountsConfig, ServerSetup, serverConfigs } from "./control-plane/nats-server-config.ts";
export { isServerOnLoopback, type NatsControlPlaneOptions } from "./control-plane/open-nats-connection.ts";
export { RunProof, Trust } from "./control-plane/trust.ts";
export { makeKey, parseTrust, type TrustedKey } from "./control-plane/trust-file.ts";
export { type FolderLock, lockFolder } from "./folder-lock.ts";
export { type Address, maxUnixPathBytes, type ParsedAddress, parseAddress } from "./link/address.ts";
export { Canceller } from "./link/canceller.ts";
export {
  type Endpoint,
  type EndpointOptions,
  type LinkTraffic,
  openEndpoint,
  type SegmentOptions,
} from "./link/endpoint.ts";
export { memoryLinkPair } from "./link/memory-link.ts";
export { createPeer, type PeerOptions } from "./link/peer.ts";
export { defaultLinkLimits, type LinkLimits } from "./link/socket-link.ts";
export { PayloadReader, PayloadStore, type PayloadStoreOptions } from "./memory/payloads.ts";
export { removeSegment, removeSegments, segmentFolder } from "./memory/shared-memory.ts";
export { Reaper } from "./programs/reaper.ts";
export { ServerProgram, type ServerProgramOptions } from "./programs/server-program.ts";
export { openRelay, type Relay, type RelayOptions } from "./relay/relay.ts";
export { replaceFile } from "./replace-file.ts";
