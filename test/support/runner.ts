/** A runner in a process of its own: starts or resumes a run of a project and prints its events, one a line; stops on SIGINT. */
import { resumeRun, runWorkflow } from "@treadle/runtime";

const [projectRoot, runsRoot, workflow, runId, ...overrides] = process.argv.slice(2) as [
  string,
  string,
  string,
  string,
  ...string[],
];
const natsOf = (all: readonly string[]) => {
  const url = all.find((each) => each.startsWith("cluster.nats.url="))?.split("=")[1];
  return url === undefined ? undefined : { url };
};
const onEvent = (value: unknown) => process.stdout.write(`${JSON.stringify(value)}\n`);
const stop = new AbortController();
process.once("SIGINT", () => stop.abort());
try {
  const common = { runsRoot, projectRoot, overrides, onEvent, stop: stop.signal };
  if (runId === "new") await runWorkflow({ ...common, workflow });
  else await resumeRun({ ...common, runId, nats: natsOf(overrides) });
  process.exit(0);
} catch (error) {
  onEvent({ type: "threw", message: (error as Error).message, code: (error as { code?: string }).code });
  process.exit(1);
}
