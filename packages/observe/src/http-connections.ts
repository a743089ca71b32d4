/**
 * Bounds the connections of an HTTP server so that those that ask nothing keep nobody out.
 *
 * HC1 at most `maxConnections` are open, and the newest is let in: the oldest without a request under way gives way, or, where
 *    each has one, the oldest. So what is being answered may be broken off, unlike by the action service (CT2), whose answers
 *    may be hours of work: here answers are short, or a page that connects again, and nobody may keep others out by reading none.
 */
import type { Server } from "node:http";
import type { Socket } from "node:net";

/** Who gives way. Pure: told what came, asked, was answered and went. */
export class ConnectionTurns<Connection> {
  readonly #maxConnections: number;
  /** oldest first, with how many requests are under way */
  readonly #open = new Map<Connection, number>();

  constructor(maxConnections: number) {
    this.#maxConnections = maxConnections;
  }

  get size(): number {
    return this.#open.size;
  }

  /** Lets one in; answers with the one that has to give way, if any. */
  admit(connection: Connection): Connection | undefined {
    const evicted = this.size < this.#maxConnections ? undefined : this.#first();
    if (evicted !== undefined) this.#open.delete(evicted);
    this.#open.set(connection, 0);
    return evicted;
  }

  asked(connection: Connection): void {
    this.#count(connection, 1);
  }

  /** A request of it has been answered, or will not be. */
  answered(connection: Connection): void {
    this.#count(connection, -1);
  }

  closed(connection: Connection): void {
    this.#open.delete(connection);
  }

  #count(connection: Connection, more: number): void {
    const num = this.#open.get(connection);
    if (num !== undefined) this.#open.set(connection, num + more);
  }

  /** HC1. */
  #first(): Connection | undefined {
    let oldest: Connection | undefined;
    for (const [connection, numAsked] of this.#open) {
      if (numAsked === 0) return connection;
      oldest ??= connection;
    }
    return oldest;
  }
}

/** A server over TLS answers on another socket than the one that it accepted; both have the same other end. */
const endOf = ({ remoteAddress, remotePort }: Socket): string => `${remoteAddress} ${remotePort}`;

/** HC1, of a server that listens on TCP. Call it before the server listens, or in the same turn. */
export function boundConnections(server: Server, maxConnections: number): void {
  const turns = new ConnectionTurns<string>(maxConnections);
  const sockets = new Map<string, Socket>();
  server.on("connection", (socket: Socket) => {
    const end = endOf(socket);
    const evicted = turns.admit(end);
    if (evicted !== undefined) sockets.get(evicted)?.destroy();
    sockets.set(end, socket);
    socket.once("close", () => {
      if (sockets.get(end) !== socket) return;
      sockets.delete(end);
      turns.closed(end);
    });
  });
  server.on("request", (request, response) => {
    const end = endOf(request.socket);
    turns.asked(end);
    response.once("close", () => turns.answered(end));
  });
}
