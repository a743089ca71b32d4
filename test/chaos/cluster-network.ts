/**
 * Network namespaces joined by a bridge, each with a cable whose two ways can be cut one by one; needs root and
 * iproute2. A way is cut by a queue that takes no packet: what is sent vanishes, and nobody is told.
 */
import { execFile } from "node:child_process";
import { createServer } from "node:net";
import { promisify } from "node:util";

const run = promisify(execFile);
const execute = (file: string, ...args: string[]) => run(file, args, { timeout: 60_000 });
const shut = ["tbf", "rate", "8bit", "burst", "1", "latency", "1ms"];

export type Place = { readonly host: string; readonly inside: readonly string[] };

export class ClusterNetwork implements AsyncDisposable {
  /** of this namespace, on the bridge */
  readonly host: string;
  readonly places: readonly Place[];
  readonly #id = (process.pid % 46_656).toString(36).padStart(3, "0");

  private constructor(numPlaces: number) {
    const subnet = `10.${180 + (process.pid % 16)}.${(process.pid >> 4) & 255}`;
    this.host = `${subnet}.1`;
    this.places = Array.from({ length: numPlaces }, (_, i) => ({
      host: `${subnet}.${i + 11}`,
      inside: ["ip", "netns", "exec", this.#name(i)],
    }));
  }

  /** A text says why there can be none. */
  static async open(numPlaces: number): Promise<ClusterNetwork | string> {
    const network = new ClusterNetwork(numPlaces);
    try {
      await network.#build();
      return network;
    } catch (error) {
      await network[Symbol.asyncDispose]();
      return (error as Error).message.trim().split("\n").slice(0, 2).join(" ");
    }
  }

  #name = (place: number): string => `trdl-${this.#id}-${place}`;
  #cable = (place: number): string => `trdl${this.#id}v${place}`;
  get #bridge(): string {
    return `trdl${this.#id}b`;
  }

  async #build(): Promise<void> {
    await execute("ip", "link", "add", this.#bridge, "type", "bridge");
    await execute("ip", "address", "add", `${this.host}/24`, "dev", this.#bridge);
    await execute("ip", "link", "set", this.#bridge, "up");
    for (const [i, { host }] of this.places.entries()) {
      const [name, cable] = [this.#name(i), this.#cable(i)];
      await execute("ip", "netns", "add", name);
      await execute("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name);
      await execute("ip", "link", "set", cable, "master", this.#bridge, "up");
      await execute("ip", "-n", name, "address", "add", `${host}/24`, "dev", "eth0");
      await execute("ip", "-n", name, "link", "set", "eth0", "up");
      await execute("ip", "-n", name, "link", "set", "lo", "up");
    }
    if (this.places.length === 0) return;
    if (!(await this.#reaches(0, 60_000))) throw new Error("network namespaces do not reach one another here");
    await this.cut(0, "to");
    if (await this.#reaches(0, 1500)) throw new Error("a network cannot be cut here");
    await this.mend(0, "to");
  }

  /** Cuts what goes to or comes from a place. */
  async cut(place: number, way: "to" | "from"): Promise<void> {
    await execute("tc", ...this.#queue("replace", place, way), ...shut);
  }

  async mend(place: number, way: "to" | "from"): Promise<void> {
    await execute("tc", ...this.#queue("delete", place, way)).catch(() => {}); // it was not cut
  }

  #queue(what: string, place: number, way: "to" | "from"): string[] {
    const on = way === "to" ? [] : ["-n", this.#name(place)];
    return [...on, "qdisc", what, "dev", way === "to" ? this.#cable(place) : "eth0", "root"];
  }

  /** Whether a connection from a place to this namespace comes about in time; a machine with much to do takes seconds. */
  async #reaches(place: number, withinMs: number): Promise<boolean> {
    const server = createServer((socket) => socket.destroy()).listen(0, this.host);
    await new Promise((resolve) => server.once("listening", resolve));
    const { port } = server.address() as { port: number };
    const { inside } = this.places[place] as Place;
    const script = `require("net").connect(${port}, "${this.host}").on("connect", () => process.exit(0)).on("error", () => process.exit(1)); setTimeout(() => process.exit(1), ${withinMs})`;
    const [file, ...args] = [...inside, process.execPath, "-e", script];
    const reached = await run(file as string, args, { timeout: withinMs + 60_000 }).then(
      () => true,
      () => false,
    );
    server.close();
    return reached;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const i of this.places.keys()) {
      await execute("ip", "netns", "delete", this.#name(i)).catch(() => {});
      await execute("ip", "link", "delete", this.#cable(i)).catch(() => {}); // went with the namespace
    }
    await execute("ip", "link", "delete", this.#bridge).catch(() => {});
  }
}
