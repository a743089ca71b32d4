/** Pages that are written once and opened without a server, and what run folders say now. */
export { RunLibrary } from "./data/run-library.ts";
export { actionComparisonPage, describePaper, describeWorkload } from "./static/action-comparison-page.ts";
export { drawFlow } from "./static/flow-drawing.ts";
export { planPage } from "./static/plan-page.ts";
export {
  componentsOf,
  describeDevices,
  experience,
  helpOf,
  type PlannedCase,
  pictureWords,
  type RefusedCase,
  standing,
  weightWords,
} from "./static/plan-words.ts";
export { type PoolTimeline, type PoolTimelineOptions, toHtmlPoolTimeline } from "./static/pool-timeline.ts";
export { writeReport } from "./static/report.ts";
export { type TimelineOptions, toHtmlTimeline } from "./static/timeline-page.ts";
