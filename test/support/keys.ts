/** The keys of a test's cluster, and the configuration by which its servers admit only them: what `treadle cluster init` makes. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { initCluster } from "../../packages/cli/src/cluster-folder.ts";

export type Keys = {
  /** of one server; address, port and store are given besides */
  readonly config: string;
  readonly trust: string;
  readonly runner: string;
  /** of any node */
  readonly node: string;
  remove(): Promise<void>;
};

export async function makeKeys(): Promise<Keys> {
  const folder = await mkdtemp(join(tmpdir(), "treadle-keys-"));
  const [config = ""] = await initCluster(folder, { servers: ["127.0.0.1:4222"] }, []);
  return {
    config,
    trust: join(folder, "trust"),
    runner: join(folder, "runner.nk"),
    node: join(folder, "node.nk"),
    remove: () => rm(folder, { recursive: true, force: true }),
  };
}

/** The flags by which a command reaches servers that know these keys. */
export const keyFlags = (keys: Keys, role: "runner" | "node" = "runner"): string[] => [
  ...["--credentials", keys[role]],
  ...["--trust", keys.trust],
];

/** The same, as a runner's configuration says it. */
export const keyOverrides = (keys: Keys): string[] => [
  `cluster.nats.credentialsFile=${keys.runner}`,
  `cluster.nats.trustFile=${keys.trust}`,
];
