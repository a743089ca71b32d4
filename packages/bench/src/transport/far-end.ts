/** The other process of the benchmark: answers through a peer, and by hand over a bare socket. */

import { closeSync, openSync, readSync } from "node:fs";
import net from "node:net";
import { createPeer, openEndpoint, releaseArrays } from "@treadle/transport";
import { sharedMemory } from "@treadle/transport/internal";
import { type HandMode, touch } from "./by-hand.ts";
import { farWords } from "./far-words.ts";

const [address, runId, token, barePath] = process.argv.slice(2) as [string, string, string, string];

/** What a signal on the bare socket asks for. */
let bare: (bytes: Buffer) => Uint8Array | undefined = (bytes) => bytes;
const signal = Buffer.alloc(1);

function prepare(mode: HandMode): void {
  if (mode.kind === "echo") bare = (bytes) => bytes;
  if (mode.kind === "count") {
    let remaining = mode.bytes;
    bare = (bytes) => {
      remaining -= bytes.length;
      return remaining === 0 ? signal : undefined;
    };
  }
  if (mode.kind === "file") {
    const target = Buffer.alloc(mode.bytes);
    const fd = openSync(mode.path, "r");
    bare = () => {
      for (let at = 0; at < target.length; ) at += readSync(fd, target, at, target.length - at, at);
      touch(target);
      return signal;
    };
    release = () => closeSync(fd);
  }
  if (mode.kind === "mapped") {
    const memory = sharedMemory()!;
    const mapping = memory.open(mode.name);
    const source = new Uint8Array(memory.view(mapping, mode.bytes));
    const target = new Uint8Array(mode.bytes);
    bare = () => {
      target.set(source);
      touch(target);
      return signal;
    };
    release = () => memory.unmap(mapping);
  }
}

let release = () => {};
let notices = 0;
const endpoint = await openEndpoint({ name: "far", runId, token });
const socket = net.connect(barePath);
socket.on("data", (bytes) => {
  const answer = bare(bytes);
  if (answer) socket.write(answer);
});
const link = await endpoint.connect(address);
const peer = createPeer(link, farWords);
peer.handle("prepare", (mode) => {
  release();
  release = () => {};
  prepare(mode as HandMode);
});
peer.handle("echo", (body) => body);
peer.handle("notice", () => {
  notices++;
});
peer.handle("notices", () => notices);
peer.handle("keep nothing", (body) => touch(body as Float32Array));
peer.handle("release", (body) => {
  touch(body as Float32Array);
  releaseArrays(body);
});
link.onClose(() => process.exit(0));
