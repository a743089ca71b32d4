import { z } from "zod";
import type { TrackedEnd, TrackedRow, Tracker } from "./tracker-feed.ts";

const Experiment = z.object({ experiment: z.object({ experiment_id: z.string() }) });
const Created = z.object({ experiment_id: z.string() });
const Run = z.object({ info: z.object({ run_id: z.string() }) });
const Found = z.object({ runs: z.array(Run).default([]) });

export type MlflowOptions = { readonly url: string; readonly experiment: string; readonly runId: string };

/** The tag by which a resumed run finds its run on the server. */
const runTag = "treadle.run";
const statusOf: Readonly<Record<TrackedEnd, string>> = { finished: "FINISHED", failed: "FAILED", open: "KILLED" };

/** A run on an MLflow server, by its REST interface 2.0. Credentials are MLflow's own environment variables. */
export class MlflowTracker implements Tracker {
  readonly name: string;
  readonly #options: MlflowOptions;
  readonly #env: NodeJS.ProcessEnv;
  #run: string | undefined;

  constructor(options: MlflowOptions, env: NodeJS.ProcessEnv = process.env) {
    this.#options = options;
    this.#env = env;
    this.name = `MLflow at ${options.url}`;
  }

  async open(signal: AbortSignal): Promise<void> {
    const { experiment, runId } = this.#options;
    const id = await this.#experimentId(experiment, signal);
    const asked = { experiment_ids: [id], filter: `tags.\`${runTag}\` = '${runId}'`, max_results: 1 };
    const { runs } = Found.parse(await this.#ask("runs/search", asked, signal));
    const known = runs[0]?.info.run_id;
    if (known !== undefined) {
      this.#run = known;
      await this.#ask("runs/update", { run_id: known, status: "RUNNING" }, signal);
      return;
    }
    const created = {
      experiment_id: id,
      run_name: runId,
      start_time: Date.now(),
      tags: [{ key: runTag, value: runId }],
    };
    this.#run = z.object({ run: Run }).parse(await this.#ask("runs/create", created, signal)).run.info.run_id;
  }

  /** At most 1000 metrics a request; JSON has no infinities, so they are left out. */
  async write(rows: readonly TrackedRow[], signal: AbortSignal): Promise<void> {
    const metrics = rows.flatMap(({ step, atMs, values }) =>
      Object.entries(values)
        .filter(([, value]) => Number.isFinite(value))
        .map(([key, value]) => ({ key: key.replace(/[^\w\-. /:]/g, "_"), value, step, timestamp: Math.round(atMs) })),
    );
    for (let from = 0; from < metrics.length; from += 1000) {
      await this.#ask("runs/log-batch", { run_id: this.#run, metrics: metrics.slice(from, from + 1000) }, signal);
    }
  }

  async close(end: TrackedEnd, signal: AbortSignal): Promise<void> {
    await this.#ask("runs/update", { run_id: this.#run, status: statusOf[end], end_time: Date.now() }, signal);
  }

  async #experimentId(name: string, signal: AbortSignal): Promise<string> {
    const path = `experiments/get-by-name?experiment_name=${encodeURIComponent(name)}`;
    const found = await this.#fetch(path, undefined, signal);
    if (found.status !== 404) return Experiment.parse(await answerOf(found)).experiment.experiment_id;
    return Created.parse(await this.#ask("experiments/create", { name }, signal)).experiment_id;
  }

  async #ask(path: string, body: object, signal: AbortSignal): Promise<unknown> {
    return answerOf(await this.#fetch(path, body, signal));
  }

  #fetch(path: string, body: object | undefined, signal: AbortSignal): Promise<Response> {
    const url = `${this.#options.url.replace(/\/+$/, "")}/api/2.0/mlflow/${path}`;
    const headers = { "content-type": "application/json", ...this.#authorization() };
    return fetch(url, { signal, headers, ...(body && { method: "POST", body: JSON.stringify(body) }) });
  }

  #authorization(): Record<string, string> {
    const {
      MLFLOW_TRACKING_TOKEN: token,
      MLFLOW_TRACKING_USERNAME: user,
      MLFLOW_TRACKING_PASSWORD: password,
    } = this.#env;
    if (token) return { authorization: `Bearer ${token}` };
    return user ? { authorization: `Basic ${Buffer.from(`${user}:${password ?? ""}`).toString("base64")}` } : {};
  }
}

async function answerOf(response: Response): Promise<unknown> {
  if (response.ok) return response.json();
  const said = (await response.text()).slice(0, 200);
  throw new Error(`it answered ${response.status} to '${new URL(response.url).pathname}': ${said}`);
}
