import { ask } from "@treadle/contracts";
import { Command } from "commander";
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
        process.stdout.write(
          `run '${run.name}' ends after the step under way; go on with 'treadle resume ${run.name}'\n`,
        );
      }),
    );
}
