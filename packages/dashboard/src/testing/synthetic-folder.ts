/** The folder of a made-up run, with the files that a runner leaves. */

import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { TraceRecord } from "@treadle/contracts";
import { MetricsWriter, TraceWriter } from "@treadle/observe";
import { startMs, syntheticRun } from "./synthetic-run.ts";

export function writeSyntheticFolder(folder: string, steps = 80): void {
  mkdirSync(folder, { recursive: true });
  const json = (name: string, value: unknown) => writeFileSync(join(folder, name), JSON.stringify(value));
  const events = syntheticRun({ steps });
  using metrics = new MetricsWriter(join(folder, "metrics.jsonl"));
  using trace = new TraceWriter(join(folder, "trace.jsonl"));
  const accuracies = new Map(
    events.flatMap((event) => (event.type === "evaluation" ? [[event.step, event.accuracy]] : [])),
  );
  let atMs = startMs;
  for (const event of events) {
    if (event.type === "run-finished") json("summary.json", event.summary);
    if (event.type !== "step-finished") continue;
    const { step, seconds, tokens } = event;
    const accuracy = accuracies.get(step);
    metrics.write(step, { seconds, tokens, ...event.metrics, ...(accuracy === undefined ? {} : { accuracy }) });
    const lasts = seconds * 1000;
    const span = (
      name: string,
      category: "compute" | "lock-wait" | "channel-wait" | "onload",
      from: number,
      to: number,
    ): TraceRecord => ({
      kind: "span",
      name,
      category,
      startMs: atMs + from * lasts,
      durationMs: (to - from) * lasts,
      step,
      devices: ["cpu:0"],
    });
    const batch = (worker: string, ...records: TraceRecord[]) => trace.append({ worker, pid: 1, dropped: 0, records });
    batch("rollout/0", span("generate", "compute", 0.02, 0.7), span("episodes", "channel-wait", 0.7, 0.74));
    batch("rollout/1", span("generate", "compute", 0.02, 0.62));
    batch(
      "inference/0",
      span("lock", "lock-wait", 0.1, 0.5),
      span("onload", "onload", 0.5, 0.55),
      span("score", "compute", 0.55, 0.68),
    );
    batch(
      "actor/0",
      span("episodes", "channel-wait", 0, 0.7),
      span("onload", "onload", 0.7, 0.73),
      span("train", "compute", 0.73, 0.98),
    );
    atMs += lasts;
  }
  const rank = (...devices: string[]) => ({ devices, node: "local" });
  json("plan.json", {
    mode: "hybrid",
    components: {
      rollout: { ranks: [rank("cpu:0"), rank("cpu:1")] },
      inference: { ranks: [rank("cpu:2")] },
      actor: { ranks: [rank("cpu:2")] },
    },
    granularity: { default: "all", channels: { episodes: 16 } },
    maxStaleness: 0,
    sharing: [{ components: ["inference", "actor"], devices: ["cpu:2"], fitTogether: true }],
    explanation: ["rollout pipelines with training, since generation takes 3.1 times as long"],
  });
  json("prediction.json", { stepSeconds: 1.4, components: { rollout: 1, inference: 0.2, actor: 0.35 } });
  const flow = (from: string, to: string, channel: string) => ({
    ...{ from, to, channel, itemsPerStep: 32 },
    bytesPerStep: 65_536,
  });
  const calls = (takes: readonly string[], puts: readonly string[]) => ({ callsPerStep: 1, takes, puts });
  const channel = (producers: readonly string[], consumers: readonly string[]) => ({
    ...{ producers, consumers, itemsPerStep: 32 },
    bytesPerStep: 65_536,
  });
  json("graph.json", {
    batch: 32,
    components: {
      rollout: { methods: { generate: calls(["prompts"], ["episodes"]) } },
      inference: { methods: { score: calls(["episodes"], ["scored"]) } },
      actor: { methods: { train: calls(["scored"], []) } },
    },
    channels: {
      prompts: channel([], ["rollout"]),
      episodes: channel(["rollout"], ["inference"]),
      scored: channel(["inference"], ["actor"]),
    },
    edges: [flow("rollout", "inference", "episodes"), flow("inference", "actor", "scored")],
    calls: [{ from: "rollout", to: "actor", method: "weights", timesPerStep: 1 }],
    cycles: [],
  });
  json("config.json", {
    workflow: "workflows/reasoning-grpo",
    config: { steps, placement: { mode: "hybrid" }, actor: { learningRate: 0.0005 }, tool: { apiKey: "abc123" } },
  });
}
