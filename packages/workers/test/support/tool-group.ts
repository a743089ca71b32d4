import type { WorkerGroup } from "@treadle/runtime";
import type { ToolWorker } from "../../src/tool/tool-worker.ts";

/** A worker as a group of one rank; what somebody asks for who is not alive is neither done nor answered. */
export function toolGroup(workerNow: () => ToolWorker, isAlive: () => boolean = () => true): WorkerGroup<ToolWorker> {
  const group = {
    size: 1,
    onRanks: () => group,
    ...Object.fromEntries(
      (["open", "submit", "collect", "report", "close"] as const).map((method) => [
        method,
        (...args: never[]) => {
          const value = isAlive()
            ? (workerNow()[method] as (...args: never[]) => Promise<unknown>)(...args)
            : new Promise<never>(() => {});
          // biome-ignore lint/suspicious/noThenProperty: handles of calls are awaitable
          return { first: () => value, then: value.then.bind(value) };
        },
      ]),
    ),
  } as unknown as WorkerGroup<ToolWorker>;
  return group;
}
