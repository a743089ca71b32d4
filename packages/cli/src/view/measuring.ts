/** What a workflow that is measured does, a line a step: it ends by itself, so there is nothing to count down to. */
import type { RunEvent } from "@treadle/contracts";
import { formatSeconds, formatTime, singleLine } from "./text.ts";

/** Turns events into lines; most have none. */
export function createMeasuringLines(): (event: RunEvent) => string[] {
  let phase = "";
  return (event) => {
    const isSame = event.type === "phase" && event.name === phase;
    if (event.type === "phase") phase = event.name;
    return isSame ? [] : linesOf(event);
  };
}

function linesOf(event: RunEvent): string[] {
  const line = (text: string) => [`${formatTime(event.atMs)}  ${singleLine(text)}`];
  switch (event.type) {
    case "phase":
      return line(event.name);
    case "plan": {
      const [first] = event.explanation;
      return first === undefined ? [] : line(first);
    }
    case "step-finished":
      return line(`  step ${event.step}  ${formatSeconds(event.seconds)}`);
    case "worker-died":
      return line(`${event.worker} died: ${event.reason}`);
    case "log":
      return event.level === "warn" || event.level === "error" ? line(`${event.worker}  ${event.line}`) : [];
    default:
      return [];
  }
}
