import { Socket } from "node:net";

type Written = (error?: Error | null) => void;

/**
 * A server that answers early ("413 Content Too Large") resets the connection on which more is still sent. A write that fails then
 * ends no connection of this kind, as it would in Node, with all that was not read yet: reading goes on until it tells of the end.
 */
export class UpstreamSocket extends Socket {
  override _write(chunk: unknown, encoding: BufferEncoding, written: Written): void {
    super._write(chunk, encoding, () => written());
  }

  override _writev(chunks: { chunk: unknown; encoding: BufferEncoding }[], written: Written): void {
    super._writev!(chunks, () => written());
  }
}
