/** The options by which a command takes a workflow's configuration. */
import { type Command, Option } from "commander";
import { clusterValues } from "../cluster-folder.ts";

/** For options that may be given several times. */
export const repeated = (value: string, previous: readonly string[]): readonly string[] => [...previous, value];

export const clusterOption = (): Option =>
  new Option("--cluster <folder>", "servers and keys of a cluster, as 'treadle cluster init' made them").env(
    "TREADLE_CLUSTER",
  );

export function withSettings(command: Command): Command {
  return withOverrides(command)
    .addOption(clusterOption())
    .hook("preAction", async (_, used) => {
      const { cluster, set } = used.opts<{ cluster?: string; set: readonly string[] }>();
      if (cluster === undefined) return; // nor has a command below, as 'simulate actions', any settings
      used.setOptionValue("set", [...(await clusterOverrides(cluster)), ...set]); // what is said besides counts for more
    });
}

/** The servers of a cluster and this runner's key there, as values of a configuration. */
export async function clusterOverrides(cluster: string | undefined): Promise<string[]> {
  if (cluster === undefined) return [];
  const values = Object.entries(await clusterValues(cluster, { role: "runner" }));
  return values.map(([key, value]) => `cluster.nats.${key}=${JSON.stringify(value)}`);
}

export function withOverrides(command: Command): Command {
  return command.addOption(
    new Option("--set <key.path=value>", "overrides a value of the configuration; may be repeated")
      .argParser(repeated)
      .default([]),
  );
}
