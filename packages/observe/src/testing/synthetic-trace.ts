/** Span batches of a made-up run: two components in turn on shared devices, one of its own, concurrent calls. */
import type { SpanBatch, SpanCategory, TraceRecord } from "@treadle/contracts";

export const traceStartMs = Date.UTC(2026, 2, 1, 9, 0, 0);

export function syntheticTrace(options: { steps?: number } = {}): SpanBatch[] {
  const { steps = 4 } = options;
  const records = new Map<string, TraceRecord[]>();
  const add = (
    worker: string,
    name: string,
    category: SpanCategory,
    atMs: number,
    durationMs: number,
    extra: Partial<Extract<TraceRecord, { kind: "span" }>> = {},
  ) => {
    const list = records.get(worker) ?? [];
    records.set(worker, list);
    list.push({ kind: "span", name, category, startMs: traceStartMs + atMs, durationMs, ...extra });
  };
  const stepMs = 2000;
  for (let index = 0; index < steps; index++) {
    const step = index + 1;
    const at = index * stepMs;
    for (const rank of [0, 1]) {
      const worker = `rollout/${rank}`;
      const devices = [`gpu:${rank}`];
      add(worker, "onload", "onload", at + 40, 120, { step, devices });
      add(worker, "device lock", "lock-wait", at + 10, 152, { step, devices });
      for (let chunk = 0; chunk < 4; chunk++) {
        const start = at + 170 + chunk * 220 + rank * 15;
        add(worker, "generate chunk", "compute", start, 200, { step, devices, attributes: { tokens: 4096, chunk } });
        add(worker, "episodes.put", "transfer", start + 201, 6, {
          step,
          devices,
          flowOut: `${worker} ${step} ${chunk}`,
        });
      }
      add(worker, "offload", "offload", at + 1060 + rank * 15, 70, { step, devices });
      add(worker, "generate", "call", at + 5, 1140 + rank * 15, { step });
    }
    add("reward/0", "episodes", "channel-wait", at + 5, 380, { step });
    for (let chunk = 0; chunk < 4; chunk++) {
      const start = at + 385 + chunk * 220;
      add("reward/0", "check", "compute", start, 90, {
        step,
        devices: ["cpu:0"],
        flowIn: `rollout/0 ${step} ${chunk}`,
      });
      add("reward/0", "check", "call", start - 2, 96, { step });
      add("reward/0", "check", "call", start + 30, 90, { step });
    }
    for (const rank of [0, 1]) {
      const worker = `actor/${rank}`;
      const devices = [`gpu:${rank}`];
      add(worker, "device lock", "lock-wait", at + 400, 735 + rank * 15, { step, devices });
      add(worker, "onload", "onload", at + 1145 + rank * 15, 100, { step, devices });
      add(worker, "forward-backward", "compute", at + 1270, 520, { step, devices });
      add(worker, "optimiser step", "compute", at + 1792, 90, { step, devices });
      add(worker, "train", "call", at + 400, 1500, { step });
    }
    add("runner", `step ${step}`, "step", at, stepMs - 5, { step });
    if (step % 2 === 0) add("runner", "checkpoint", "checkpoint", at + 1900, 80, { step });
  }
  records.get("rollout/1")!.push({
    kind: "instant",
    name: "worker died: SIGKILL",
    category: "failure",
    startMs: traceStartMs + stepMs * 1.4,
    step: 2,
  });
  records.get("runner")!.push({ kind: "counter", name: "episodes", startMs: traceStartMs + 500, values: { depth: 7 } });
  return [...records].map(([worker, list], index) => ({ worker, pid: 100 + index, dropped: 0, records: list }));
}
