/** Groups of nodes: which nodes are in them, and how worker processes are started there. Pure. */
import { type Interpreter, type RuntimeConfig, TreadleError } from "@treadle/contracts";

type Cluster = Pick<RuntimeConfig["cluster"], "groups" | "nodeGroups">;
export type LabelledNode = {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  /** its own as long as the run lasts, whichever nodes come and go */
  readonly number: number;
};
/** `nodes` in the order of the devices; so many have ever had a number, with those that are gone. */
export type NumberedNodes = { readonly nodes: readonly LabelledNode[]; readonly numKnown: number };

/** How worker processes of one node are started, besides what their component says. */
export type NodeLaunch = {
  readonly env: Readonly<Record<string, string>>;
  /** default: the Node that the node agent runs on */
  readonly interpreter?: Interpreter | undefined;
};

/**
 * The indices of the nodes of every group, by which placements name them; `cluster.nodeGroups` lists their numbers. Throws
 * `config.invalid` for a group that has neither labels nor a list of nodes.
 */
export function nodeIndices(
  { groups, nodeGroups }: Cluster,
  { nodes, numKnown }: NumberedNodes,
): Record<string, number[]> {
  const indices = new Map(nodes.map(({ number }, index) => [number, index]));
  // One that has gone is in no group; one that never was is named by the placement that asks for it.
  const indexOf = (number: number): number[] => {
    const index = indices.get(number);
    return index === undefined ? (number < numKnown ? [] : [number]) : [index];
  };
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
  const listed = Object.entries(nodeGroups).map(([name, numbers]) => [name, numbers.flatMap(indexOf)]);
  return { ...Object.fromEntries(listed), ...Object.fromEntries(labelled) };
}

/** A node in several groups has the environment of all; where they disagree, the later in the configuration counts. */
export function nodeLaunch(cluster: Cluster, node: LabelledNode): NodeLaunch {
  const groups = Object.entries(cluster.groups).filter(([name, { labels }]) =>
    labels === undefined ? cluster.nodeGroups[name]?.includes(node.number) : hasAll(node, labels),
  );
  const interpreter = groups.flatMap(([, group]) => group.interpreter ?? []).at(-1);
  return {
    env: Object.assign({}, ...groups.map(([, { env }]) => env)),
    ...(interpreter === undefined ? {} : { interpreter }),
  };
}

const hasAll = (node: LabelledNode, labels: Readonly<Record<string, string>>): boolean =>
  Object.entries(labels).every(([key, value]) => node.labels[key] === value);
