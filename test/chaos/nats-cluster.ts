/** NATS servers that keep everything together, each at a place of its own. */
import { freePort, type NatsServer, startNatsServer } from "@treadle/transport/testing";
import { type Keys, makeKeys } from "../support/keys.ts";
import type { Place } from "./cluster-network.ts";

export class NatsCluster implements AsyncDisposable {
  readonly servers: readonly NatsServer[];
  readonly keys: Keys;

  private constructor(servers: readonly NatsServer[], keys: Keys) {
    this.servers = servers;
    this.keys = keys;
  }

  static async start(places: readonly Place[]): Promise<NatsCluster> {
    const routes = await Promise.all(places.map(async ({ host }) => `nats://${host}:${await freePort()}`));
    const keys = await makeKeys();
    const servers = await Promise.all(
      places.map(({ host, inside }, i) =>
        startNatsServer({
          host,
          inside,
          args: [
            ...["-c", keys.config],
            ...["--name", `s${i}`, "--cluster_name", "treadle"],
            ...["--cluster", routes[i] as string, "--routes", routes.join(",")],
          ],
        }),
      ),
    );
    return new NatsCluster(servers, keys);
  }

  get url(): string {
    return this.servers.map(({ url }) => url).join(",");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.servers.map((server) => server[Symbol.asyncDispose]()));
    await this.keys.remove();
  }
}
