import { Command } from "commander";
import { examineMachine, renderDoctor } from "../doctor.ts";
import { jsonText } from "../view/text.ts";

export function doctorCommand(): Command {
  return new Command("doctor")
    .description("says what this machine has and lacks, and how to get it")
    .option("--json", "prints one object")
    .action(async (flags: { json?: boolean }) => {
      const findings = await examineMachine();
      process.stdout.write(
        flags.json
          ? `${jsonText(findings)}\n`
          : `${renderDoctor(findings, { colour: process.stdout.isTTY === true })}\n`,
      );
    });
}
