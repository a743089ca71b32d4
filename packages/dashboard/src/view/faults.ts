/** What went wrong in a run and when, for its time line. Pure. */
import type { RunEvent } from "@treadle/contracts";

export type Fault = {
  readonly atMs: number;
  readonly level: "good" | "warn" | "error";
  readonly kind: "death" | "restart" | "wait" | "warning" | "error" | "failure" | "resumed";
  /** the worker, or what said it */
  readonly who: string;
  readonly text: string;
};

const maxText = 2000;

export function faultOf(event: RunEvent): Fault | undefined {
  const { atMs } = event;
  const fault = (level: Fault["level"], kind: Fault["kind"], who: string, text: string): Fault => ({
    ...{ atMs, level, kind, who },
    text: text.slice(0, maxText),
  });
  switch (event.type) {
    case "worker-died": {
      const how = event.signal
        ? `killed by ${event.signal}`
        : typeof event.code === "number"
          ? `exit ${event.code}`
          : "";
      return fault("error", "death", event.worker, [how, event.reason].filter(Boolean).join(": "));
    }
    case "worker-restarted":
      return fault("good", "restart", event.worker, event.reason ?? "started again");
    case "waiting":
      if (event.seconds === 0) return undefined;
      return fault("warn", "wait", event.who, `waits ${Math.round(event.seconds)} s for ${event.on}`);
    case "log":
      if (event.level === "warn") return fault("warn", "warning", event.worker, event.line);
      if (event.level === "error" || event.level === "fatal") return fault("error", "error", event.worker, event.line);
      return undefined;
    case "run-failed":
      return fault("error", "failure", event.error.origin?.worker ?? "run", event.error.message);
    case "run-started":
      if (event.resumedFrom === undefined) return undefined;
      return fault("good", "resumed", "runner", `resumed after step ${event.resumedFrom}`);
    default:
      return undefined;
  }
}
