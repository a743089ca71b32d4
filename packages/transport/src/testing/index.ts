export { unpackPackages } from "./debian-packages.ts";
/** What tests of several packages share. */
export { freePort, NatsServer, type NatsServerOptions, startNatsServer } from "./nats-server.ts";
export { openProtocol } from "./open-protocol.ts";
export { connectStranger, nobodyListens } from "./stranger.ts";
