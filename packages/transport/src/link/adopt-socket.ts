/**
 * Node reads into a caller's memory (`onread`) only on sockets that the caller has made. One that a server accepted gets
 * fresh memory for each read, which then has to be copied from and collected: twice the processor time for bulk. So its
 * handle goes to a socket of ours before anything is read.
 */
import net from "node:net";

/** Not of Node's documented interface, as is the constructor's `handle`; where they are missing, nothing is adopted. */
type WithHandle = { _handle?: { useUserBuffer?: unknown; onread?: unknown } | null };

/**
 * A socket in place of one that a server with `pauseOnConnect` has accepted. The server counts it no more, and does not
 * wait for it when it closes. Undefined where this Node cannot do that: the accepted one is as it was.
 */
export function adoptSocket(accepted: net.Socket, onread: net.OnReadOpts): net.Socket | undefined {
  const owner = accepted as unknown as WithHandle;
  const handle = owner._handle;
  if (typeof handle?.useUserBuffer !== "function") return undefined;
  const options: net.SocketConstructorOpts & { handle: object; onread: net.OnReadOpts } = {
    handle,
    allowHalfOpen: true,
    onread,
  };
  const adopted = new net.Socket(options);
  if ((adopted as unknown as WithHandle)._handle !== handle) return undefined;
  owner._handle = null;
  accepted.destroy();
  return adopted;
}
