import { ClusterConfig } from "@treadle/contracts";
import { expect, test } from "vitest";
import { nodeIndices, nodeLaunch } from "../../../src/runner/nodes/node-groups.ts";

const nodes = [
  { name: "a", number: 0, labels: { pool: "h200", zone: "1" } },
  { name: "b", number: 1, labels: { pool: "cpu" } },
  { name: "c", number: 2, labels: { pool: "h200", zone: "2" } },
];
const all = { nodes, numKnown: 3 };
const interpreter = { command: "/opt/node-22/bin/node", flags: ["--max-semi-space-size=64"] };
const cluster = ClusterConfig.parse({
  nodeGroups: { first: [0, 1] },
  groups: {
    big: { labels: { pool: "h200" }, env: { NCCL_DEBUG: "WARN", SHARED: "big" } },
    corner: { labels: { pool: "h200", zone: "2" }, interpreter: { command: "/opt/other/node" } },
    nowhere: { labels: { pool: "tpu" }, env: { NEVER: "1" } },
    first: { env: { SHARED: "first" }, interpreter },
  },
});

test("nodes belong to groups by all of their labels, or by their number", () => {
  expect(nodeIndices(cluster, all)).toEqual({ first: [0, 1], big: [0, 2], corner: [2], nowhere: [] });
});

test("a node has what all of its groups say, the later one where they disagree", () => {
  expect(nodeLaunch(cluster, nodes[0]!)).toEqual({ env: { NCCL_DEBUG: "WARN", SHARED: "first" }, interpreter });
  expect(nodeLaunch(cluster, nodes[1]!)).toEqual({ env: { SHARED: "first" }, interpreter });
  expect(nodeLaunch(cluster, nodes[2]!)).toEqual({
    env: { NCCL_DEBUG: "WARN", SHARED: "big" },
    interpreter: { command: "/opt/other/node", flags: [] },
  });
  // One that has joined since the devices were numbered.
  expect(nodeLaunch(cluster, { name: "d", number: 3, labels: { pool: "h200" } }).env).toEqual({
    NCCL_DEBUG: "WARN",
    SHARED: "big",
  });
  expect(nodeLaunch(ClusterConfig.parse({}), nodes[0]!)).toEqual({ env: {} });
});

test("a group of which nobody says who is in it is a mistake", () => {
  const wrong = ClusterConfig.parse({ groups: { gpu: { env: {} } } });
  expect(() => nodeIndices(wrong, all)).toThrow(/cluster.groups.gpu says of no node.*nodeGroups.gpu/);
  expect(() => ClusterConfig.parse({ groups: { gpu: { interpreter: { command: "node" } } } })).toThrow(/absolute path/);
});

test("a node keeps its number when others go: the rest of its group is meant, and nobody else", () => {
  const withoutA = { nodes: nodes.slice(1), numKnown: 3 };
  expect(nodeIndices(cluster, withoutA)).toMatchObject({ first: [0] }); // of `b`, which is now the first of two
  expect(nodeLaunch(cluster, nodes[2]!).interpreter).toEqual({ command: "/opt/other/node", flags: [] });
  const never = ClusterConfig.parse({ nodeGroups: { far: [7] } });
  expect(nodeIndices(never, withoutA)).toEqual({ far: [7] }); // which a placement that names it refuses
});
