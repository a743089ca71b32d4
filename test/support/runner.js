/** A runner in a process of its own: starts or resumes a run of a project and prints its events, one a line; stops on SIGINT.
 *  JavaScript, so that compiled it needs no loader. */
import { dirname } from "node:path";
import { resumeRun, runWorkflow } from "@treadle/runtime/runner";

const [projectRoot, runsRoot, workflow, runId, ...overrides] = process.argv.slice(2);
const prefix = "cluster.nats.";
const given = overrides.filter((each) => each.startsWith(prefix)).map((each) => each.slice(prefix.length).split("="));
const nats = given.length === 0 ? undefined : Object.fromEntries(given.filter(([key]) => key !== "durableRuns"));
const onEvent = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
const stop = new AbortController();
// Not `once`: what writes files sends the process the signal again where nobody else listens.
process.on("SIGINT", () => stop.abort());
try {
  const common = { runsRoot, projectRoot, overrides, onEvent, stop: stop.signal };
  // A workflow's folder, or one of the files in it that have its configuration.
  const asked = workflow.endsWith(".yaml") ? { workflow: dirname(workflow), configFile: workflow } : { workflow };
  if (runId === "new") await runWorkflow({ ...common, ...asked });
  else await resumeRun({ ...common, runId, nats });
  process.exit(0);
} catch (error) {
  onEvent({ type: "threw", message: error.message, code: error.code });
  process.exit(1);
}
