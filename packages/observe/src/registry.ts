import type { RunEvent, UtilisationShares } from "@treadle/contracts";
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from "prom-client";

/** Metrics of one run for a Prometheus server to scrape. */
export interface RunRegistry {
  /** Folds one event of the run in. */
  observe(event: RunEvent): void;
  /** The Prometheus text exposition, to be served as `contentType`. */
  exposition(): Promise<string>;
  readonly contentType: string;
}

const activities: readonly (keyof UtilisationShares)[] = ["compute", "lockWait", "channelWait", "transfer", "idle"];

/** A registry of its own for every run, so that two runs in one process stay apart. */
export function createRunRegistry(labels: { runId: string }, options: { processMetrics?: boolean } = {}): RunRegistry {
  const registry = new Registry();
  const registers = [registry];
  registry.setDefaultLabels({ run: labels.runId });
  if (options.processMetrics) collectDefaultMetrics({ register: registry });

  const step = new Gauge({ name: "treadle_step", help: "last finished step", registers });
  const steps = new Gauge({ name: "treadle_steps", help: "steps asked for", registers });
  const metric = new Gauge({
    name: "treadle_metric",
    help: "what the workflow reported for the last step",
    labelNames: ["name"],
    registers,
  });
  const accuracy = new Gauge({ name: "treadle_accuracy", help: "last evaluation", registers });
  const stepTime = new Histogram({
    name: "treadle_step_seconds",
    help: "time of a step",
    buckets: [0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 300, 900, 3600],
    registers,
  });
  const tokens = new Counter({ name: "treadle_tokens_total", help: "tokens generated", registers });
  const checkpoints = new Counter({ name: "treadle_checkpoints_total", help: "checkpoints written", registers });
  const deaths = new Counter({
    name: "treadle_worker_deaths_total",
    help: "worker processes that ended without being asked to",
    labelNames: ["worker"],
    registers,
  });
  const restarts = new Counter({
    name: "treadle_worker_restarts_total",
    help: "worker processes started again",
    labelNames: ["worker"],
    registers,
  });
  const depth = new Gauge({
    name: "treadle_channel_depth",
    help: "items waiting in a channel",
    labelNames: ["channel"],
    registers,
  });
  const share = new Gauge({
    name: "treadle_component_share",
    help: "share of time by activity",
    labelNames: ["component", "activity"],
    registers,
  });

  return {
    contentType: registry.contentType,
    exposition: () => registry.metrics(),
    observe(event) {
      switch (event.type) {
        case "run-started":
          steps.set(event.steps);
          break;
        case "step-finished":
          step.set(event.step);
          stepTime.observe(event.seconds);
          tokens.inc(event.tokens);
          for (const [name, value] of Object.entries(event.metrics)) metric.set({ name }, value);
          break;
        case "evaluation":
          accuracy.set(event.accuracy);
          break;
        case "checkpoint":
          checkpoints.inc();
          break;
        case "worker-died":
          deaths.inc({ worker: event.worker });
          break;
        case "worker-restarted":
          restarts.inc({ worker: event.worker });
          break;
        case "queue":
          depth.set({ channel: event.channel }, event.depth);
          break;
        case "utilisation":
          for (const [component, shares] of Object.entries(event.components)) {
            for (const activity of activities) share.set({ component, activity }, shares[activity]);
          }
          break;
      }
    },
  };
}
