/** A curve over steps, kept at a bounded number of points however long a run is. */
export type Curve = {
  readonly points: readonly CurvePoint[];
  readonly first: CurvePoint | undefined;
  readonly last: CurvePoint | undefined;
  /** points that are averaged into one */
  readonly stride: number;
  /** the average under way, as a sum */
  readonly pending: { readonly count: number; readonly sum: number };
};
export type CurvePoint = { readonly step: number; readonly value: number };

const maxPoints = 256;

export const emptyCurve: Curve = {
  points: [],
  first: undefined,
  last: undefined,
  stride: 1,
  pending: { count: 0, sum: 0 },
};

/** Adds a value; values that are no numbers are left out. When the curve is full, neighbours become their mean. */
export function extendCurve(curve: Curve, step: number, value: number): Curve {
  if (!Number.isFinite(value)) return curve;
  const last = { step, value };
  const first = curve.first ?? last;
  const pending = { count: curve.pending.count + 1, sum: curve.pending.sum + value };
  if (pending.count < curve.stride) return { ...curve, first, last, pending };
  const points = [...curve.points, { step, value: pending.sum / pending.count }];
  const none = { count: 0, sum: 0 };
  if (points.length < maxPoints) return { points, first, last, stride: curve.stride, pending: none };
  const halved: CurvePoint[] = [];
  for (let i = 0; i + 1 < points.length; i += 2) {
    const a = points[i]!;
    const b = points[i + 1]!;
    halved.push({ step: b.step, value: (a.value + b.value) / 2 });
  }
  return { points: halved, first, last, stride: curve.stride * 2, pending: none };
}

/** What to draw: the kept points, and the last value where it is still being averaged. */
export function drawnPoints(curve: Curve): CurvePoint[] {
  return curve.pending.count > 0 && curve.last ? [...curve.points, curve.last] : [...curve.points];
}
