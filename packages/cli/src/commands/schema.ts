import { loadWorkflow } from "@treadle/runtime/runner";
import { Command } from "commander";
import { configSchema } from "../config-schema.ts";

export function schemaCommand(): Command {
  return new Command("schema")
    .description(
      "prints the JSON Schema of a workflow's configuration, by which editors complete and check config.yaml",
    )
    .argument("<workflow>", "folder of the workflow")
    .action(async (folder: string) => {
      const { workflow } = await loadWorkflow(folder);
      process.stdout.write(`${JSON.stringify(configSchema(workflow.schema), null, 2)}\n`);
    });
}
