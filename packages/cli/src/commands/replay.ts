import { TreadleError } from "@treadle/contracts";
import { type ReplayUntil, replayRun } from "@treadle/runtime/runner";
import { Command } from "commander";
import { renderReplay, renderState } from "../view/replay-text.ts";
import { jsonText } from "../view/text.ts";
import { chooseRun } from "./choose-run.ts";
import { findProjectRoot } from "./project.ts";

export function replayCommand(): Command {
  return new Command("replay")
    .description(
      "replays the decisions of a recorded run: proves that they are the same, or shows the state at an instant",
    )
    .argument("[run]", "id of the run (default: the newest); it must have run with observe.record=true")
    .option("--runs <folder>", "where runs keep their folders")
    .option(
      "--until <instant>",
      "shows the whole state after a step ('12'), at a time since the start ('90s', '1500ms') or at the 'end'",
    )
    .option("--json", "prints the result as JSON")
    .action(async (runId: string | undefined, flags: { runs?: string; until?: string; json?: boolean }) => {
      const { path } = await chooseRun(runId, flags.runs);
      const { recordings, state } = await replayRun(
        path,
        findProjectRoot(),
        flags.until === undefined ? undefined : untilOf(flags.until),
      );
      const text = state === undefined ? renderReplay(recordings) : renderState(state);
      process.stdout.write(`${flags.json ? jsonText(state ?? recordings) : text}\n`);
    });
}

function untilOf(text: string): ReplayUntil {
  if (text === "end") return "end";
  const [, digits = "", unit] = /^(\d+(?:\.\d+)?)(ms|s|m)?$/.exec(text) ?? [];
  const value = Number(digits);
  if (digits !== "" && unit === undefined && Number.isInteger(value) && value > 0) return { step: value };
  if (digits !== "" && unit !== undefined)
    return { seconds: value * { ms: 0.001, s: 1, m: 60 }[unit as "ms" | "s" | "m"] };
  throw new TreadleError(
    "config.invalid",
    `--until '${text}' is not allowed: a step such as '12' is, a time since the start such as '90s', '1.5m' or '1500ms', or 'end'`,
  );
}
