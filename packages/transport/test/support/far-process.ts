/** The other process of a test: dials the address it is given and does as it is asked. */

import { createPeer, openEndpoint, releaseArrays } from "../../src/index.ts";
import { farWords } from "./far-words.ts";

const [address, runId, token, segments] = process.argv.slice(2) as [string, string, string, string];
const endpoint = await openEndpoint({
  name: "far",
  runId,
  token,
  ...(segments === "off" ? { segments: false as const } : {}),
});
const link = await endpoint.connect(address);
const peer = createPeer(link, farWords);
const kept: unknown[] = [];

function sum(data: Float32Array): number {
  let total = 0;
  for (let index = 0; index < data.length; index++) total += data[index]!;
  return total;
}

peer.handle("echo", (body) => body);
peer.handle("sum", (body) => sum(body as Float32Array));
peer.handle("sum and release", (body) => {
  const total = sum(body as Float32Array);
  releaseArrays(body);
  return [total, (body as Float32Array).length];
});
peer.handle("keep", (body) => kept.push(body));
peer.handle("sums of kept", () => kept.map((body) => sum(body as Float32Array)));
peer.handle("make", (length) => new Float32Array(length as number).fill(1));
peer.handle("hang", () => new Promise(() => {}));
peer.handle("die while sending", (length) => {
  link.send(new Float32Array(length as number));
  setImmediate(() => process.kill(process.pid, "SIGKILL"));
  return new Promise(() => {});
});
link.onClose(() => process.exit(0));
