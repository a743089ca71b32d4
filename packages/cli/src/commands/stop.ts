import { ask } from "@treadle/contracts";
import { Command } from "commander";
import { singleLine } from "../view/text.ts";
import { chooseMember, type NatsFlags, withControlPlane, withNatsFlags } from "./control-plane.ts";

const timeoutMs = 10_000;

export function stopCommand(): Command {
  return withNatsFlags(new Command("stop"))
    .description("ends a run on node agents after the step under way, with a checkpoint")
    .argument("[run]", "id of the run (default: the only one)")
    .action((runId: string | undefined, flags: NatsFlags) =>
      withControlPlane(flags, async (plane) => {
        const run = chooseMember(plane, runId);
        await ask(plane, "run", run, "stop", {}, { timeoutMs });
        const name = singleLine(run.name);
        process.stdout.write(`run '${name}' ends after the step under way; go on with 'treadle resume ${name}'\n`);
      }),
    );
}
