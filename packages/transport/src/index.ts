export { type Address, maxUnixPathBytes, type ParsedAddress, parseAddress } from "./address.ts";
export { systemClock } from "./clock.ts";
export { Decoder, decodeItem, type Encoded, Encoder, encodeItem } from "./codec.ts";
export { type Endpoint, type EndpointOptions, openEndpoint, type SegmentOptions } from "./endpoint.ts";
export { memoryLinkPair } from "./memory-link.ts";
export { createPeer, type PeerOptions } from "./peer.ts";
export { dropIdleMemory, releaseArrays } from "./received-arrays.ts";
export { removeSegments } from "./shared-memory.ts";
export { defaultLinkLimits, type LinkLimits } from "./socket-link.ts";
