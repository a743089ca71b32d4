import { median } from "@treadle/contracts";

/** One figure of a benchmark, next to the same work done another way in the same run. */
export type BenchRow = {
  readonly name: string;
  /** null when it could not be measured here; `notMeasured` then begins with the reason */
  readonly value: number | null;
  readonly unit: string;
  /** the other way, in the same unit */
  readonly baseline: number | null;
  /** what the other way is */
  readonly against: string | null;
  /** value / baseline */
  readonly ratio: number | null;
  /** what the ratio must not exceed, or fall below */
  readonly ratioAtMost?: number | undefined;
  readonly ratioAtLeast?: number | undefined;
  /** what the figure says nothing about */
  readonly notMeasured: string;
};

export type RowInput = {
  readonly name: string;
  readonly value: number | null;
  readonly unit: string;
  readonly baseline?: number | null;
  readonly against?: string;
  readonly ratioAtMost?: number;
  readonly ratioAtLeast?: number;
  readonly notMeasured: string;
};

export function row(input: RowInput): BenchRow {
  const { baseline = null, against = null, ...rest } = input;
  const ratio = baseline === null || input.value === null ? null : input.value / baseline;
  return { ...rest, baseline, against, ratio };
}

/** Milliseconds that `act` takes. */
export async function timed(act: () => PromiseLike<unknown> | unknown): Promise<number> {
  const startedMs = performance.now();
  await act();
  return performance.now() - startedMs;
}

/** Milliseconds of a clock that all processes of a machine share. */
export function machineNowMs(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

/** The median of the milliseconds that so many of them take, one after the other. */
export async function medianMs(count: number, act: () => PromiseLike<unknown>): Promise<number> {
  const times: number[] = [];
  for (let round = 0; round < count; round++) {
    const startedMs = performance.now();
    await act();
    times.push(performance.now() - startedMs);
  }
  return median(times);
}
