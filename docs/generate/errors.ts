import { type Disposition, errorCatalogue } from "@treadle/contracts";
import { cell, code, table } from "./table.ts";

const headings: Readonly<Record<Disposition, string>> = {
  misuse: "Misuse: change something",
  retryable: "Retryable: the same work may succeed",
  fatal: "Fatal: the same work fails again",
  cancelled: "Cancelled: somebody asked for the end",
};

/** Every code of the catalogue, by what to do about it. */
export function errorsPage(): string {
  const all = Object.entries(errorCatalogue);
  return [
    "# Errors",
    "",
    "Every error that Treadle raises is a `TreadleError` with one of these codes. Its message says what happened, the value in",
    "quotes, what was allowed, and the remedy. Supervisors retry what is retryable. `treadle` exits with 2 for a misuse, 130 for",
    "a cancellation, and 1 for the rest.",
    ...Object.entries(headings).flatMap(([disposition, heading]) => [
      "",
      `## ${heading}`,
      "",
      table(
        ["code", "meaning"],
        all.filter(([, one]) => one.disposition === disposition).map(([name, one]) => [code(name), cell(one.meaning)]),
      ),
    ]),
    "",
  ].join("\n");
}
