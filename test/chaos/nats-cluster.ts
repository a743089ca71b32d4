/** NATS servers that keep everything together, each at a place of its own. */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { freePort, type NatsServer, startNatsServer } from "@treadle/transport/testing";
import type { Place } from "./cluster-network.ts";

/** Else a server takes minutes to notice that another is cut off, and then waits as long again until it tries anew. */
const configuration = 'ping_interval: "2s"\nping_max: 2\n';

export class NatsCluster implements AsyncDisposable {
  readonly servers: readonly NatsServer[];

  readonly #folder: string;

  private constructor(servers: readonly NatsServer[], folder: string) {
    this.servers = servers;
    this.#folder = folder;
  }

  static async start(places: readonly Place[]): Promise<NatsCluster> {
    const routes = await Promise.all(places.map(async ({ host }) => `nats://${host}:${await freePort()}`));
    const folder = await mkdtemp(join(tmpdir(), "treadle-nats-cluster-"));
    const file = join(folder, "nats.conf");
    await writeFile(file, configuration);
    const servers = await Promise.all(
      places.map(({ host, inside }, i) =>
        startNatsServer({
          host,
          inside,
          args: [
            ...["-c", file],
            ...["--name", `s${i}`, "--cluster_name", "treadle"],
            ...["--cluster", routes[i] as string, "--routes", routes.join(",")],
          ],
        }),
      ),
    );
    return new NatsCluster(servers, folder);
  }

  get url(): string {
    return this.servers.map(({ url }) => url).join(",");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.servers.map((server) => server[Symbol.asyncDispose]()));
    await rm(this.#folder, { recursive: true, force: true });
  }
}
