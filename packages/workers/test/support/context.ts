import { pathToFileURL } from "node:url";
import type { WorkerContext } from "@treadle/runtime";
import { Group } from "./group.ts";

/** What a worker is told when no run is around it; its devices are always free. Alone, unless it is a rank of a group. */
export function contextOf<C>(config: C, component: string, { rank = 0, group = new Group(1) } = {}): WorkerContext<C> {
  const silent = () => {};
  return {
    config,
    runId: "run-1",
    node: "local",
    component,
    rank,
    worldSize: group.worldSize,
    rankDevices: new Array<number>(group.worldSize).fill(1),
    seed: 3,
    log: { info: silent, warn: silent, error: silent, debug: silent },
    devices: { ids: ["cpu:0"], lock: async () => ({ [Symbol.asyncDispose]: async () => {} }), onBeside: () => {} },
    messages: group.messagesOf(rank),
    timer: () => ({ [Symbol.dispose]: silent }),
    artifacts: { write: async () => {} },
    predictors: { read: async () => undefined, write: async () => {} },
    loadModule: (path: string) => import(pathToFileURL(path).href),
    sizing: { report: async () => {} },
    tracer: { now: () => performance.now(), complete: silent, counter: silent, instant: silent },
  } as unknown as WorkerContext<C>;
}
