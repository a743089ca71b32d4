/** Entry of every worker process: reads what it is to be from standard input, then hosts it. */
import { text } from "node:stream/consumers";
import { WorkerBoot } from "@treadle/contracts";
import { failureLine } from "../author/worker-lines.ts";
import { hostWorker } from "./worker-host.ts";

// Ctrl-C in a terminal reaches the whole foreground; ending workers is the runner's business.
process.on("SIGINT", () => {});

try {
  const boot = WorkerBoot.parse(JSON.parse(await text(process.stdin)));
  await hostWorker(boot);
  process.exit(0);
} catch (error) {
  // The node agent reads the last line that begins with this mark as the cause of the exit.
  process.stderr.write(`\n${failureLine(error)}\n`, () => process.exit(1));
}
