import { createNodeRegistry, createRunRegistry, type Exposition } from "@treadle/observe";
import { cell, code, table } from "./table.ts";

/** Every metric of the two registries, from their own expositions. */
export async function metricsPage(): Promise<string> {
  const run = await createRunRegistry({ runId: "documented" });
  const node = await createNodeRegistry("documented", { cpus: 1, memoryBytes: 1, devices: [] });
  return [
    "# Metrics",
    "",
    "In the text format of Prometheus, at `/metrics`. Nothing listens until it is configured. The process's own metrics",
    "(`process_…`, `nodejs_…`) come besides.",
    "",
    "## Of a run",
    "",
    "Served by the runner with `observe.metrics.address`. Each has the label `run`.",
    "",
    await metricTable(run),
    "",
    "## Of a node",
    "",
    "Served by an agent with `treadle node --metrics`. Each has the label `node`.",
    "",
    await metricTable(node),
    "",
  ].join("\n");
}

async function metricTable(registry: Exposition): Promise<string> {
  const text = await registry.exposition();
  const rows = [...text.matchAll(/^# HELP (treadle_\w+) (.*)\n# TYPE \w+ (\w+)$/gm)].map(
    ([, name = "", help = "", type = ""]) => [code(name), type, cell(help)],
  );
  return table(["metric", "type", "meaning"], rows);
}
