/** How much slower works are beside each other, as pools have measured it. */
import type { MeasuredSlowdown } from "@treadle/contracts";
import { markdownTable } from "./markdown-table.ts";

const columns = ["works", "beside", "with memory", "times as long", "± standard error", "samples"];

export const slowdownTable = (slowdowns: readonly MeasuredSlowdown[]): string =>
  markdownTable(
    columns,
    slowdowns.map(({ work, beside, memory, factor, error, samples }) => [
      ...[work, beside, `${Math.round(100 * memory)} %`],
      ...[factor.toFixed(3), error.toFixed(3), samples.toFixed(0)],
    ]),
  );
