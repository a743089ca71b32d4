/**
 * A drawn workload is compared by a process of its own, as long as this one lives: what one of them plans and simulates keeps no
 * others from their timers.
 */
import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { type ComparedWorkload, compareWorkload } from "./compared-workload.ts";

type CompareOptions = Parameters<typeof compareWorkload>[1];

/** Why it cannot run is a result, too. */
export type ComparedApart = { readonly compared: ComparedWorkload } | { readonly failure: string };

/** What the process is told, and what it says. Metrics may be NaN, so neither is JSON. */
const Task = z.object({ name: z.string(), options: z.looseObject({ workflow: z.string() }) });
const Said = z.union([z.object({ compared: z.looseObject({ name: z.string() }) }), z.object({ failure: z.string() })]);

/** `script`: of the command line. */
export async function compareApart(
  script: string,
  name: string,
  { stop, kill, ...options }: CompareOptions,
): Promise<ComparedApart> {
  const child = fork(script, ["compare", "--apart", options.workflow], {
    // A signal from the terminal comes by this process, which knows how often it has come.
    detached: true,
    stdio: ["ignore", "ignore", "inherit", "ipc"],
    serialization: "advanced",
  });
  let said: ComparedApart | undefined;
  child.on("message", (message) => {
    said = Said.parse(message) as ComparedApart;
  });
  const signal = () => child.kill("SIGINT");
  for (const each of [stop, kill]) each?.addEventListener("abort", signal);
  try {
    child.send({ name, options }, () => {}); // one that never began is told of below
    const how = await ended(child);
    return said ?? { failure: `the process that compared it ${how}` };
  } finally {
    for (const each of [stop, kill]) each?.removeEventListener("abort", signal);
  }
}

async function ended(child: ChildProcess): Promise<string> {
  // What it has said may come after it is gone, and is there once the channel has ended.
  const [[code, by]] = (await Promise.all([once(child, "exit"), once(child, "disconnect")])) as [
    [number | null, string | null],
    unknown,
  ];
  return by === null ? `ended with exit code ${code}` : `was ended by ${by}`;
}

/** In that process: waits for its task, and says what came of it. */
export async function answerApart(signals: Pick<CompareOptions, "stop" | "kill">): Promise<void> {
  if (process.send === undefined)
    throw new TreadleError("problem.invalid", "'--apart' is for processes that 'treadle compare' starts; leave it out");
  process.once("disconnect", () => process.exit(1)); // its workers end with it
  const [message] = (await once(process, "message")) as [unknown];
  const { name, options } = Task.parse(message);
  const answer = await compareWorkload(name, { ...(options as CompareOptions), ...signals }).then(
    (compared): ComparedApart => ({ compared }),
    (error: unknown): ComparedApart => {
      if (!(error instanceof TreadleError)) throw error;
      return { failure: error.message };
    },
  );
  await new Promise<void>((resolve) => process.send?.(answer, undefined, {}, () => resolve()));
  process.removeAllListeners("disconnect");
  process.disconnect();
}
