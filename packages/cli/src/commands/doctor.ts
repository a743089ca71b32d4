import { Command } from "commander";
import { examineMachine, renderDoctor, systemProbe } from "../doctor.ts";
import { jsonText } from "../view/text.ts";
import { clusterOption } from "./settings.ts";

export function doctorCommand(): Command {
  return new Command("doctor")
    .description("says what this machine has and lacks, and how to get it")
    .addOption(clusterOption())
    .option("--json", "prints one object")
    .action(async (flags: { cluster?: string; json?: boolean }) => {
      const findings = await examineMachine(systemProbe(flags.cluster));
      process.stdout.write(
        flags.json
          ? `${jsonText(findings)}\n`
          : `${renderDoctor(findings, { colour: process.stdout.isTTY === true })}\n`,
      );
    });
}
