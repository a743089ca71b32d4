/** What tests of several packages share. */
export { freePort, NatsServer, type NatsServerOptions, startNatsServer } from "./nats-server.ts";
