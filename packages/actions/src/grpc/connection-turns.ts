/**
 * Which connection of a listener gives way when there are too many. Pure: told what came, asked, was answered and went.
 *
 * CT1 at most `most` are open, and of one address at most what `mostOf` says.
 * CT2 one that comes is let in, and the one that has been idle longest gives way: of its own address where that has too many, else
 *    of all. Only where none of them is idle does the new one: what is being answered is not broken off for it. (`boundConnections`
 *    of the servers of metrics and dashboards differs in that: there a new one is worth more than an old answer, as whoever scrapes or
 *    looks asks again, while a peer that reads no answer could keep everybody out; here an answer may be hours of work.)
 */
type Open = { readonly address: string; numAsked: number };

export class ConnectionTurns<Connection> {
  readonly #most: number;
  readonly #mostOf: (address: string) => number;
  readonly #open = new Map<Connection, Open>();
  /** with their addresses, those that have been idle longest first */
  readonly #idle = new Map<Connection, string>();
  readonly #ofAddress = new Map<string, number>();

  constructor(most: number, mostOf: (address: string) => number) {
    this.#most = most;
    this.#mostOf = mostOf;
  }

  get size(): number {
    return this.#open.size;
  }

  /** Answers with the one that has to give way, which may be the new one; undefined where there is room. */
  admit(connection: Connection, address: string): Connection | undefined {
    const isCrowd = (this.#ofAddress.get(address) ?? 0) >= this.#mostOf(address);
    let evicted: Connection | undefined;
    if (isCrowd || this.size >= this.#most) {
      evicted = this.#idlest(isCrowd ? address : undefined);
      if (evicted === undefined) return connection;
      this.closed(evicted);
    }
    this.#open.set(connection, { address, numAsked: 0 });
    this.#idle.set(connection, address);
    this.#ofAddress.set(address, (this.#ofAddress.get(address) ?? 0) + 1);
    return evicted;
  }

  asked(connection: Connection): void {
    const open = this.#open.get(connection);
    if (open === undefined) return;
    open.numAsked++;
    this.#idle.delete(connection);
  }

  /** A request of it has been answered, or will not be. */
  answered(connection: Connection): void {
    const open = this.#open.get(connection);
    if (open !== undefined && --open.numAsked === 0) this.#idle.set(connection, open.address);
  }

  closed(connection: Connection): void {
    const open = this.#open.get(connection);
    if (open === undefined) return;
    this.#open.delete(connection);
    this.#idle.delete(connection);
    const left = this.#ofAddress.get(open.address)! - 1;
    if (left === 0) this.#ofAddress.delete(open.address);
    else this.#ofAddress.set(open.address, left);
  }

  #idlest(address: string | undefined): Connection | undefined {
    for (const [connection, own] of this.#idle) if (address === undefined || own === address) return connection;
    return undefined;
  }
}
