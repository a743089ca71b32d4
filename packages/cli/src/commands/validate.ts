import { validateWorkflow } from "@treadle/runtime/runner";
import { Command } from "commander";
import { stringify } from "yaml";
import { findProjectRoot } from "./project.ts";
import { withSettings } from "./settings.ts";

export function validateCommand(): Command {
  return withSettings(new Command("validate"))
    .description("checks a workflow's configuration and placement without starting anything, and prints both resolved")
    .argument("<workflow>", "folder of the workflow")
    .option("--config <file>", "configuration file (default: config.yaml of the workflow)")
    .option("--json", "prints one object with config and plan")
    .action(async (workflow: string, flags: { config?: string; set: string[]; json?: boolean }) => {
      const { config, plan } = await validateWorkflow({
        workflow,
        configFile: flags.config,
        overrides: flags.set,
        projectRoot: findProjectRoot(),
      });
      if (flags.json) {
        process.stdout.write(`${JSON.stringify({ config, plan })}\n`);
        return;
      }
      const { explanation, ...placement } = plan;
      process.stdout.write(`# configuration\n${stringify(config)}\n# placement\n${stringify(placement)}\n`);
      for (const line of explanation) process.stdout.write(`# ${line}\n`);
    });
}
