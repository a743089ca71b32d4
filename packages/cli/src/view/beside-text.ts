/** What runs lose and gain beside each other, on a terminal. */
import pc from "picocolors";
import type { ComparedBeside } from "../commands/beside.ts";
import { formatPercent, formatSeconds, padCells, singleLine } from "./text.ts";

export function renderBeside(
  { runs, seconds, serialSeconds, partsSeconds, turnSeconds }: ComparedBeside,
  colour = pc.isColorSupported,
): string[] {
  const [bold, dim] = colour ? [pc.bold, pc.dim] : [String, String];
  const names = runs.map(({ name }) => singleLine(name));
  const width = Math.max(...names.map((name) => name.length));
  const row = (cells: readonly string[]) => cells.map((cell, i) => padCells(cell, i === 0 ? width : 14)).join("  ");
  const rows = runs.map(({ aloneSeconds, besideSeconds, slowdown, leasedShare, waitedShare }, i) => {
    const times = [formatSeconds(aloneSeconds), formatSeconds(besideSeconds), `${slowdown.toFixed(2)} times`];
    return row([names[i]!, ...times, formatPercent(leasedShare, 0), formatPercent(waitedShare, 0)]).trimEnd();
  });
  const speed = (other: number) => (other / seconds).toFixed(2);
  const parts =
    partsSeconds === undefined ? "" : `, ${speed(partsSeconds)} times as fast as each on its part of the devices`;
  return [
    bold(`beside each other, in turns of ${formatSeconds(turnSeconds)}, simulated`),
    dim(row(["", "a step alone", "beside", "as long", "has devices", "waits"]).trimEnd()),
    ...rows,
    `all of it in ${formatSeconds(seconds)}: ${speed(serialSeconds)} times as fast as one after the other${parts}`,
  ].map((line) => `  ${line}`);
}
