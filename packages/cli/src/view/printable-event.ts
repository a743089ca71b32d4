/** Events of a run as they may be shown: workers of other machines have named and said what is in them. */
import type { RunEvent } from "@treadle/contracts";
import { printable } from "./text.ts";

/** Every text of it, names of metrics and channels too, without what moves a cursor, changes colours or writes elsewhere. */
export const printableEvent = (event: RunEvent): RunEvent => printableValue(event) as RunEvent;

function printableValue(value: unknown): unknown {
  if (typeof value === "string") return printable(value);
  if (Array.isArray(value)) return value.map(printableValue);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [printable(key), printableValue(each)]));
}
