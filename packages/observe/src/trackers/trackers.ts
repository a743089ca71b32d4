import { join, resolve } from "node:path";
import type { RunEvent, TrackerConfig } from "@treadle/contracts";
import { MetricsWriter } from "../metrics.ts";
import { MlflowTracker } from "./mlflow.ts";
import { ModuleTracker } from "./module-tracker.ts";
import { TensorboardTracker } from "./tensorboard.ts";
import { type TrackedEnd, type TrackedRow, type Tracker, TrackerFeed } from "./tracker-feed.ts";
import { WandbTracker } from "./wandb.ts";

export type TrackerContext = {
  readonly runId: string;
  /** of the run */
  readonly folder: string;
  readonly projectRoot: string;
  /** of the run, by which one that was stopped is told from one that is done */
  readonly steps: number;
  readonly warn: (message: string) => void;
  /** a module of the project, by its path from the project's root */
  readonly loadModule: (path: string) => Promise<Readonly<Record<string, unknown>>>;
};

/** Sends the metrics of each committed step to every configured tracker; nothing that one does reaches the run. */
export class Trackers {
  readonly #feeds: readonly TrackerFeed[];
  readonly #steps: number;
  #end: TrackedEnd = "open";

  constructor(configs: readonly TrackerConfig[], context: TrackerContext) {
    this.#steps = context.steps;
    this.#feeds = configs.map((config) => new TrackerFeed(trackerOf(config, context), context.warn));
  }

  event(event: RunEvent): void {
    if (event.type === "run-failed") this.#end = "failed";
    if (event.type === "run-finished" && event.summary.steps >= this.#steps) this.#end = "finished";
    if (event.type !== "step-finished") return;
    const { step, atMs, seconds, metrics } = event;
    for (const feed of this.#feeds) feed.write({ step, atMs, values: { seconds, ...metrics } });
  }

  async close(): Promise<void> {
    await Promise.all(this.#feeds.map((feed) => feed.close(this.#end)));
  }
}

function trackerOf(config: TrackerConfig, { runId, folder, projectRoot, steps, loadModule }: TrackerContext): Tracker {
  switch (config.kind) {
    case "jsonl":
      return new JsonLinesTracker(resolve(projectRoot, config.path));
    case "tensorboard":
      return new TensorboardTracker(
        config.folder ? resolve(projectRoot, config.folder, runId) : join(folder, "tensorboard"),
      );
    case "mlflow":
      return new MlflowTracker({ ...config, runId });
    case "wandb": {
      const { python = process.env["TREADLE_PYTHON"] ?? "python3", ...more } = config;
      return new WandbTracker({ ...more, python, runId, folder });
    }
    case "module": {
      const { module, settings } = config;
      return new ModuleTracker(module, loadModule, { runId, folder, steps, settings });
    }
  }
}

/** The lines of `metrics.jsonl`, in a file of the user's. */
class JsonLinesTracker implements Tracker {
  readonly name: string;
  readonly #path: string;
  #writer: MetricsWriter | undefined;

  constructor(path: string) {
    this.#path = path;
    this.name = `'${path}'`;
  }

  async open(): Promise<void> {
    this.#writer = new MetricsWriter(this.#path);
  }

  async write(rows: readonly TrackedRow[]): Promise<void> {
    for (const { step, values } of rows) this.#writer?.write(step, values);
  }

  async close(): Promise<void> {
    this.#writer?.close();
  }
}
