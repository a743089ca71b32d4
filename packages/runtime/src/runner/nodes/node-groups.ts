/** Groups of nodes: which nodes are in them, and how worker processes are started there. Pure. */
import { type Interpreter, type RuntimeConfig, TreadleError } from "@treadle/contracts";

type Cluster = Pick<RuntimeConfig["cluster"], "groups" | "nodeGroups">;
export type LabelledNode = { readonly name: string; readonly labels: Readonly<Record<string, string>> };

/** How worker processes of one node are started, besides what their component says. */
export type NodeLaunch = {
  readonly env: Readonly<Record<string, string>>;
  /** default: the Node that the node agent runs on */
  readonly interpreter?: Interpreter | undefined;
};

/**
 * The indices of the nodes of every group, by which placements name them. `nodes` in the order of the devices. Throws
 * `config.invalid` for a group that has neither labels nor a list of nodes.
 */
export function nodeIndices({ groups, nodeGroups }: Cluster, nodes: readonly LabelledNode[]): Record<string, number[]> {
  const labelled = Object.entries(groups).flatMap(([name, { labels }]): [string, number[]][] => {
    if (labels === undefined) {
      if (Object.hasOwn(nodeGroups, name)) return [];
      throw new TreadleError(
        "config.invalid",
        `cluster.groups.${name} says of no node that it belongs to it; give it labels, as of 'treadle node --labels', or list its nodes in cluster.nodeGroups.${name}`,
      );
    }
    return [[name, nodes.flatMap((node, index) => (hasAll(node, labels) ? [index] : []))]];
  });
  return { ...nodeGroups, ...Object.fromEntries(labelled) };
}

/**
 * A node in several groups has the environment of all; where they disagree, the later in the configuration counts.
 * `nodes` as for `nodeIndices`; a node that is not among them belongs to groups by its labels alone.
 */
export function nodeLaunch(cluster: Cluster, nodes: readonly LabelledNode[], node: LabelledNode): NodeLaunch {
  const own = nodes.findIndex(({ name }) => name === node.name);
  const groups = Object.entries(cluster.groups).filter(([name, { labels }]) =>
    labels === undefined ? cluster.nodeGroups[name]?.includes(own) : hasAll(node, labels),
  );
  const interpreter = groups.flatMap(([, group]) => group.interpreter ?? []).at(-1);
  return {
    env: Object.assign({}, ...groups.map(([, { env }]) => env)),
    ...(interpreter === undefined ? {} : { interpreter }),
  };
}

const hasAll = (node: LabelledNode, labels: Readonly<Record<string, string>>): boolean =>
  Object.entries(labels).every(([key, value]) => node.labels[key] === value);
