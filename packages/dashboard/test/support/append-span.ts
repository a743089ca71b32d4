import type { SpanTable } from "../../src/view/span-table.ts";

export type OneSpan = {
  readonly worker: string;
  readonly name: string;
  readonly category: string;
  readonly startMs: number;
  readonly durationMs: number;
  readonly step?: number;
  readonly devices?: readonly string[];
};

/** On the first lanes, as if a line of a trace had it alone. */
export function appendSpan(table: SpanTable, span: OneSpan): void {
  const { worker, name, category, startMs, durationMs, step = -1, devices } = span;
  table.appender({
    ...{ worker, names: [name], categories: [category], deviceSets: devices === undefined ? [] : [devices] },
    ...{ name: [0], category: [0], startMs: [startMs], durationMs: [durationMs], step: [step] },
    devices: [devices === undefined ? -1 : 0],
  })(0, 0, 0);
}
