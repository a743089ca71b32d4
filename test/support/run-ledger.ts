/** A runner in a process of its own, to be killed: starts or resumes the ledger and prints its events, one a line. */
import { resumeRun, runWorkflow } from "@treadle/runtime";
import { projectRoot } from "./cluster.ts";
import { ledgerOptions } from "./ledger.ts";

const [runsRoot, runId, ...overrides] = process.argv.slice(2) as [string, string, ...string[]];
const print = (value: unknown) => process.stdout.write(`${JSON.stringify(value)}\n`);
try {
  if (runId === "new") await runWorkflow(ledgerOptions(runsRoot, print, overrides));
  else await resumeRun({ runId, runsRoot, projectRoot, overrides, onEvent: print });
  process.exit(0);
} catch (error) {
  print({ type: "threw", message: (error as Error).message, code: (error as { code?: string }).code });
  process.exit(1);
}
