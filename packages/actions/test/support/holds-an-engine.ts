import { startDockerEngine } from "./docker-engine.ts";

/** Starts an engine, says where, and waits to be killed. */
const engine = await startDockerEngine();
console.log(typeof engine === "string" ? "" : engine.socket);
setInterval(() => {}, 1000);
