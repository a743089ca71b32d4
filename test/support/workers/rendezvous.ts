/** A worker whose ranks join over TCP at the place of their rendezvous, as those of a process group do. */
import { once } from "node:events";
import { createServer, connect as dial } from "node:net";
import { text } from "node:stream/consumers";
import { type Rendezvous, Worker } from "@treadle/runtime";

export type RendezvousConfig = {
  readonly meetsIn: "setup" | "load" | "calls";
  /** this rank never comes */
  readonly absent?: number;
  readonly timeoutMs?: number;
};

export class RendezvousWorker extends Worker<RendezvousConfig> {
  static override readonly module: string = import.meta.url;
  static override readonly restart = "group";
  #place: Rendezvous | undefined;
  #welcome = "";

  override async setup(): Promise<void> {
    if (this.config.meetsIn === "setup") await this.#join();
  }
  override async load(): Promise<void> {
    if (this.config.meetsIn === "load") await this.#join();
  }

  async join(): Promise<void> {
    await this.#join();
  }

  /** Where it met, and what the first rank told it there. */
  async met(): Promise<{ place: Rendezvous | undefined; welcome: string }> {
    return { place: this.#place, welcome: this.#welcome };
  }

  /** What the first rank answers at the present place to one with this key. */
  async knock(key: string): Promise<string> {
    return this.#show(this.#place as Rendezvous, key);
  }

  async #join(): Promise<void> {
    const { absent, timeoutMs } = this.config;
    await this.messages.broadcast("all have started"); // how long that takes is of no account for the limit
    if (absent === this.rank) return;
    const place = await this.messages.rendezvous({ timeoutMs });
    this.#place = place;
    if (this.rank === 0) await this.#listen(place);
    await this.messages.broadcast("listening");
    this.#welcome = await this.#show(place, place.key);
  }

  async #listen({ listen, port, key }: Rendezvous): Promise<void> {
    const server = createServer((socket) => {
      socket.on("error", () => {});
      socket.once("data", (shown) => socket.end(shown.toString() === key ? "welcome" : "stale"));
    });
    server.listen(port, listen);
    await once(server, "listening");
    server.unref();
  }

  async #show({ host, port }: Rendezvous, key: string): Promise<string> {
    const socket = dial(port, host);
    await once(socket, "connect");
    socket.write(key);
    return text(socket);
  }
}
