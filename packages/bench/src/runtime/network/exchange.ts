import { once } from "node:events";
import type net from "node:net";

/** Writes, and waits for the one byte that says that all has come. */
export function exchange(socket: net.Socket, parts: readonly Uint8Array[]): Promise<unknown> {
  const answered = once(socket, "data");
  for (const part of parts) socket.write(part);
  return answered;
}
