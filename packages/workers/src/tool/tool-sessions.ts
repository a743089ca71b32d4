import { hashString } from "@treadle/learning";
import type { WorkerGroup } from "@treadle/runtime";
import type { ToolCall, ToolReport, ToolResult } from "./items.ts";
import { ToolSession } from "./tool-session.ts";
import type { ToolWorker } from "./tool-worker.ts";

/** What an episode's rank asks of its tool. */
export type ToolCaller = Pick<ToolSession, "isStateful" | "call" | "end" | "keep" | "close">;

/**
 * One rank's conversations with all ranks of a tool. A trajectory's name says which of them has its sandbox, so whichever rank
 * plays it asks the same one.
 */
export class ToolSessions implements ToolCaller {
  readonly #sessions: readonly ToolSession[];

  private constructor(sessions: readonly ToolSession[]) {
    this.#sessions = sessions;
  }

  static async open(tool: WorkerGroup<ToolWorker>, owner: string): Promise<ToolSessions> {
    const ranks = Array.from({ length: tool.size }, (_, rank) => ToolSession.open(tool.onRanks(rank), owner));
    return new ToolSessions(await Promise.all(ranks));
  }

  get isStateful(): boolean {
    return this.#sessions.some(({ isStateful }) => isStateful);
  }

  call(call: ToolCall): Promise<ToolResult> {
    return this.#of(call.trajectory).call(call);
  }

  end(trajectory: string): void {
    this.#of(trajectory).end(trajectory);
  }

  keep(trajectory: string): void {
    this.#of(trajectory).keep(trajectory);
  }

  async close(): Promise<ToolReport> {
    return together(await Promise.all(this.#sessions.map((session) => session.close())));
  }

  #of(trajectory: string): ToolSession {
    return this.#sessions[hashString(trajectory) % this.#sessions.length] as ToolSession;
  }
}

/** Means over all calls; of the ranks' 95th percentiles the longest; of their cores the mean. */
function together(reports: readonly ToolReport[]): ToolReport {
  const sum = (of: (report: ToolReport) => number): number => reports.reduce((all, report) => all + of(report), 0);
  const toolCalls = sum((report) => report.toolCalls);
  const mean = (of: (report: ToolReport) => number): number =>
    sum((report) => of(report) * report.toolCalls) / Math.max(1, toolCalls);
  return {
    toolCalls,
    toolFailures: sum((report) => report.toolFailures),
    actSeconds: mean((report) => report.actSeconds),
    actP95Seconds: Math.max(...reports.map((report) => report.actP95Seconds)),
    queueingSeconds: mean((report) => report.queueingSeconds),
    executionSeconds: mean((report) => report.executionSeconds),
    overheadSeconds: mean((report) => report.overheadSeconds),
    coresHeld: sum((report) => report.coresHeld) / reports.length,
    coresBusy: sum((report) => report.coresBusy) / reports.length,
    coresGranted: mean((report) => report.coresGranted),
  };
}
