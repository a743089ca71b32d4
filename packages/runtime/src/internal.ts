/** For sibling packages that measure what lies below the public entry. */
export { ProjectCode } from "./node/code-hash.ts";
export { RunCluster } from "./runner/cluster/run-cluster.ts";
export { findNodes } from "./runner/nodes/find-nodes.ts";
