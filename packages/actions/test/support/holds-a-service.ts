/** Starts a service that never answers, and waits to be killed. */
import { ProcessServices } from "../../src/index.ts";

const services = new ProcessServices({
  services: { mute: { command: ["sh", "-c", "sleep 76.25 & sleep 76.25"] } },
  freeBytes: async (_, devices) => devices.map(() => 100),
});
const instance = { service: "mute", dop: 1, chunk: { node: 0, start: 0, size: 1 } };
services.restore(instance, new AbortController().signal).catch(() => {});
setInterval(() => {}, 1000);
