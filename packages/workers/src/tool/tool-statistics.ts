import type { CoreTime, ShellAction } from "@treadle/actions";
import type { ToolReport } from "./items.ts";

/** What happened to one owner's calls between two reports. */
export class ToolStatistics {
  #actions: ShellAction[] = [];
  #sinceMs: number;
  #since: CoreTime;

  constructor(nowMs: number, coreTime: CoreTime) {
    this.#sinceMs = nowMs;
    this.#since = coreTime;
  }

  add(action: ShellAction): void {
    this.#actions.push(action);
  }

  /** Reports, and begins anew. */
  report(nowMs: number, coreTime: CoreTime, numCores: number): ToolReport {
    const actions = this.#actions;
    const mean = (value: (action: ShellAction) => number): number =>
      actions.reduce((sum, action) => sum + value(action), 0) / Math.max(1, actions.length);
    const completion = (action: ShellAction): number =>
      action.queueingSeconds + action.executionSeconds + action.overheadSeconds;
    const sorted = actions.map(completion).sort((a, b) => a - b);
    const coreSeconds = Math.max(1e-9, (numCores * (nowMs - this.#sinceMs)) / 1000);
    const report = {
      toolCalls: actions.length,
      toolFailures: actions.filter(({ exitCode }) => exitCode !== 0).length,
      actSeconds: mean(completion),
      actP95Seconds: sorted[Math.ceil(0.95 * sorted.length) - 1] ?? 0,
      queueingSeconds: mean((action) => action.queueingSeconds),
      executionSeconds: mean((action) => action.executionSeconds),
      overheadSeconds: mean((action) => action.overheadSeconds),
      coresHeld: (coreTime.heldSeconds - this.#since.heldSeconds) / coreSeconds,
      coresBusy: (coreTime.busySeconds - this.#since.busySeconds) / coreSeconds,
      coresGranted: mean((action) => action.cores.length),
    };
    this.#actions = [];
    this.#sinceMs = nowMs;
    this.#since = coreTime;
    return report;
  }
}
