/** What a terminal and a page share: how numbers are written, and the state of a run as its events have it. Pure, no page. */
export { axisLabels } from "./view/axis.ts";
export { colourSlots } from "./view/colours.ts";
export { type Curve, type CurvePoint, drawnPoints, emptyCurve, extendCurve } from "./view/curve.ts";
export {
  deviceRange,
  formatClock,
  formatCount,
  formatPercent,
  formatSeconds,
  formatTime,
  plural,
  significant,
} from "./view/format.ts";
export { fold, initialState, type Notice, type RunState, recentTokensPerSecond, secondsLeft } from "./view/state.ts";
export type { ActionStatus, ClusterStatus, RunNow } from "./view/wire.ts";
