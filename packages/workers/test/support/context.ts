import type { WorkerContext } from "@treadle/runtime";

/** What a worker is told when no run is around it; its devices are always free. */
export function contextOf<C>(config: C, component: string): WorkerContext<C> {
  const silent = () => {};
  return {
    config,
    component,
    rank: 0,
    worldSize: 1,
    seed: 3,
    log: { info: silent, warn: silent, error: silent, debug: silent },
    devices: { ids: ["cpu:0"], lock: async () => ({ [Symbol.asyncDispose]: async () => {} }) },
    messages: {},
    timer: () => ({ [Symbol.dispose]: silent }),
    tracer: { now: () => performance.now(), complete: silent, counter: silent },
  } as unknown as WorkerContext<C>;
}
