/** Entry of every worker process: reads what it is to be from standard input, loading ahead while it waits, then hosts it. */
import { text } from "node:stream/consumers";
import { WorkerInput } from "@treadle/contracts";
import { loadAhead } from "../author/module-loader.ts";
import { failureLine } from "../author/worker-lines.ts";
import { Watchdog } from "./watchdog.ts";
import { hostWorker } from "./worker-host.ts";

// Ctrl-C in a terminal reaches the whole foreground; ending workers is the runner's business.
process.on("SIGINT", () => {});

// Before anything that may take long, or for ever: what waits for its worker ends with its parent, too.
const watchdog = new Watchdog();

try {
  const [, , module] = process.argv;
  if (module !== undefined) await loadAhead(module);
  const input = await text(process.stdin);
  if (input === "") process.exit(0); // no worker needed it, or its node is gone
  const { boot, env } = WorkerInput.parse(JSON.parse(input));
  Object.assign(process.env, env);
  await hostWorker(boot, watchdog);
  process.exit(0);
} catch (error) {
  // The node agent reads the last line that begins with this mark as the cause of the exit.
  process.stderr.write(`\n${failureLine(error)}\n`, () => process.exit(1));
}
