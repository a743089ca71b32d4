import { isAbsolute, join, relative, resolve } from "node:path";
import { isServerOnLoopback } from "@treadle/transport";
import { Command } from "commander";
import { addNode, initCluster, removeNode } from "../cluster-folder.ts";
import { readOnTheWay } from "../nats-probe.ts";
import { given } from "./control-plane.ts";
import { repeated } from "./settings.ts";

type InitFlags = {
  readonly server: readonly string[];
  readonly listen?: string;
  readonly node: readonly string[];
  readonly subjectPrefix?: string;
  readonly store?: string;
  readonly tlsCa?: string;
  readonly tlsCert?: string;
  readonly tlsKey?: string;
};

export const defaultClusterFolder = ".treadle/cluster";

export function clusterCommand(): Command {
  const init = new Command("init")
    .description("makes keys for runners and node agents, and the configuration of NATS servers that admit only them")
    .argument("[folder]", "where they are written; keep it to yourself", defaultClusterFolder)
    .option(
      "--server <host:port>",
      "where clients reach a server (default: 127.0.0.1:4222); three for a cluster",
      repeated,
      [],
    )
    .option("--listen <address>", "where servers listen, if that is another, as 0.0.0.0 in a container")
    .option(
      "--node <name>",
      "a key that is this node's alone; may be repeated (default: one key for all)",
      repeated,
      [],
    )
    .option("--subject-prefix <name>", "the project's own (default: treadle)")
    .option("--store <folder>", "of JetStream, on the servers (default: below the folder)")
    .option("--tls-cert <file>", "the servers' certificate: connections are encrypted")
    .option("--tls-key <file>", "its key")
    .option("--tls-ca <file>", "its authority, by which clients know it")
    .action(async (folder: string, flags: InitFlags) => {
      const files = await initCluster(
        folder,
        {
          servers: flags.server.length === 0 ? ["127.0.0.1:4222"] : [...flags.server],
          store: resolve(flags.store ?? join(folder, "jetstream")),
          ...given({
            listen: flags.listen,
            subjectPrefix: flags.subjectPrefix,
            tls: given({ ca: flags.tlsCa, cert: flags.tlsCert, key: flags.tlsKey }),
          }),
          ...(flags.server.length > 1 ? { routePassword: crypto.randomUUID() } : {}),
        },
        flags.node,
      );
      const name = flags.node[0] ?? "a";
      process.stdout.write(
        [
          `wrote keys and server configuration into '${folder}', for you alone; start`,
          ...files.map((file) => `  nats-server -c ${shown(file)}`),
          `  npx treadle node --cluster ${folder} --name ${name}`,
          `  npx treadle run workflows/reasoning-grpo --cluster ${folder}`,
          "a machine of a node needs 'cluster.json', 'trust' and the node's own key of it, and no other key",
          ...(flags.tlsCert === undefined && flags.server.some((server) => !isServerOnLoopback(server))
            ? [`careful: ${readOnTheWay}`]
            : []),
          "",
        ].join("\n"),
      );
    });
  const add = new Command("add-node")
    .description("makes a key for one more node, and writes the servers' configuration with it")
    .argument("<name>", "the node's, as of 'treadle node --name'")
    .option("--cluster <folder>", "that 'treadle cluster init' has made", defaultClusterFolder)
    .action(async (name: string, flags: { readonly cluster: string }) => {
      const files = await addNode(flags.cluster, name);
      const list = files.map(shown).join(", ");
      process.stdout.write(
        `wrote the key of '${name}', and ${list}; tell servers with 'nats-server --signal reload'\n`,
      );
    });
  const remove = new Command("remove-node")
    .description("revokes the key that is one node's alone, and writes the servers' configuration without it")
    .argument("<name>", "the node's")
    .option("--cluster <folder>", "that 'treadle cluster init' has made", defaultClusterFolder)
    .action(async (name: string, flags: { readonly cluster: string }) => {
      const files = await removeNode(flags.cluster, name);
      const list = files.map(shown).join(", ");
      process.stdout.write(
        `revoked the key of '${name}' in 'trust' and ${list}; tell servers with 'nats-server --signal reload', replace other machines' copies of 'trust', and restart the agents and runners there: a process that runs trusts the key until then\n`,
      );
    });
  return new Command("cluster")
    .description("sets up who may use a cluster: keys, and servers that know them")
    .addCommand(init)
    .addCommand(add)
    .addCommand(remove);
}

/** As the user would type it. */
function shown(path: string): string {
  const short = relative(process.cwd(), path);
  return short.startsWith("..") || isAbsolute(short) ? path : short;
}
