import type { Socket } from "node:net";

/**
 * Passes on what either side sends, and its end, at the speed of the slower. Both must allow half-open connections. When one
 * breaks, the other is reset, so that it does not take what it has for the whole; when one has ended well, the other has
 * `idleMs` at a time to take the rest.
 */
export function tunnel(one: Socket, other: Socket, idleMs: number): void {
  passOn(one, other, idleMs);
  passOn(other, one, idleMs);
}

function passOn(from: Socket, to: Socket, idleMs: number): void {
  from.pipe(to);
  const onClose = (hadError: boolean): void => {
    if (hadError || !from.readableEnded || !from.writableFinished) abort(to);
    else {
      to.setTimeout(idleMs, () => abort(to));
      to.destroySoon();
    }
  };
  if (from.destroyed) onClose(true);
  else from.once("close", onClose);
}

/**
 * Only TCP has resets, and only connections that are open have an address. Where the end was asked for, libuv refuses a reset, and Node
 * then loses the socket without closing it.
 */
export function abort(socket: Socket): void {
  if (socket.remoteAddress === undefined || socket.writableEnded) socket.destroy();
  else socket.resetAndDestroy();
}
