import type { WorkerGroup } from "@treadle/runtime";
import type { ToolWorker } from "../../src/tool/tool-worker.ts";

/** A worker as a group of one rank. */
export function toolGroup(workerNow: () => ToolWorker): WorkerGroup<ToolWorker> {
  const group = {
    size: 1,
    onRanks: () => group,
    ...Object.fromEntries(
      (["open", "submit", "collect", "report", "close"] as const).map((method) => [
        method,
        (...args: never[]) => {
          const value = (workerNow()[method] as (...args: never[]) => Promise<unknown>)(...args);
          // biome-ignore lint/suspicious/noThenProperty: handles of calls are awaitable
          return { first: () => value, then: value.then.bind(value) };
        },
      ]),
    ),
  } as unknown as WorkerGroup<ToolWorker>;
  return group;
}
