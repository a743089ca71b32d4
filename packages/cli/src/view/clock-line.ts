import { printable } from "./text.ts";

/** A line of a process that serves, with the time; what others have worded is in many of them. */
export function printClockLine(text: string): void {
  process.stdout.write(`${new Date().toISOString().slice(11, 19)} ${printable(text)}\n`);
}
