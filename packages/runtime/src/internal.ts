/** For sibling packages that measure what lies below the public entry. */
export { Cluster } from "./cluster/cluster.ts";
export { findNodes } from "./cluster/find-nodes.ts";
