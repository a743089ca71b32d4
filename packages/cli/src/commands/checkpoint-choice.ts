/** Which checkpoint of a run is meant. */
import { TreadleError } from "@treadle/contracts";
import { Checkpoints, type RunFolder } from "@treadle/runtime/runner";

export function checkpointChoice(text: string): "best" | "last" | number {
  if (text === "best" || text === "last") return text;
  if (/^\d+$/.test(text)) return Number(text);
  throw new TreadleError(
    "config.invalid",
    `'--checkpoint' is '${text}': allowed are 'last', 'best', and the number of a step`,
  );
}

export const checkpointsOf = (run: RunFolder) =>
  new Checkpoints(run.checkpoints, { everySteps: 1, keepLast: 0, keepBest: 0, bestBy: "" }).list();
