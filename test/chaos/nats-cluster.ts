/** NATS servers that keep everything together, each at a place of its own. */
import { freePort, type NatsServer, startNatsServer } from "@treadle/transport/testing";
import type { Place } from "./cluster-network.ts";

export class NatsCluster implements AsyncDisposable {
  readonly servers: readonly NatsServer[];

  private constructor(servers: readonly NatsServer[]) {
    this.servers = servers;
  }

  static async start(places: readonly Place[]): Promise<NatsCluster> {
    const routes = await Promise.all(places.map(async ({ host }) => `nats://${host}:${await freePort()}`));
    const servers = await Promise.all(
      places.map(({ host, inside }, i) =>
        startNatsServer({
          host,
          inside,
          args: [
            ...["--name", `s${i}`, "--cluster_name", "treadle"],
            ...["--cluster", routes[i] as string, "--routes", routes.join(",")],
          ],
        }),
      ),
    );
    return new NatsCluster(servers);
  }

  get url(): string {
    return this.servers.map(({ url }) => url).join(",");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.servers.map((server) => server[Symbol.asyncDispose]()));
  }
}
