/** What a workflow module exports by default, and what its function is given. */

import { RuntimeConfig, TreadleError } from "@treadle/contracts";
import type { z } from "zod";
import type { Channel } from "./channel/channel.ts";
import type { Cluster } from "./cluster.ts";
import type { CallHandle } from "./group/handle.ts";

/**
 * The items of each step, by the step's number from 1, and what earlier ones have carried on. The same number, the same items that
 * wait and the same position give the same items, so a resumed run goes on exactly.
 */
export type Dataset<T> = (
  step: number,
  carried: Carried<T>,
) => readonly T[] | Drawn<T> | Promise<readonly T[] | Drawn<T>>;

/** Where a dataset has come to, as JSON of at most `maxPositionBytes`; the dataset alone reads it. */
export type Position = z.core.util.JSONType;

/** Items of a step, and where the next one goes on. The journal has the position with the step: a resume goes on from the last committed one. */
export type Drawn<T> = { readonly items: readonly T[]; readonly position: Position };

/** What earlier steps were given and have not finished. */
export type Carried<T> = {
  /** those that wait, in the order in which they came; one that a step is given waits no more */
  readonly items: readonly T[];
  /** earlier steps that were given such items */
  readonly numSteps: number;
  /** items that earlier steps were given, each counted once: how far the dataset has come */
  readonly numGiven: number;
  /** that the newest step left, which after a resume is the last committed one; undefined: at the beginning, or steps leave none */
  readonly position?: Position | undefined;
};

/** What becomes of the items that a step has not finished. */
export type Unfinished<T> = {
  /** what the journal has of an item that waits, and so a resume; default: all of it */
  readonly kept?: (item: T) => T;
  /**
   * whether a resume has an item that waits whole, from a file beside the journal, where it may be large; a resume from an older
   * checkpoint has what is kept; default: none is
   */
  readonly saved?: (item: T) => boolean;
  /** why an item waits no more: no step finishes it, and the journal has its id by that; undefined for one that waits; default: all wait */
  readonly cut?: (item: T) => string | undefined;
};

export type Step<T> = {
  /** from 1 */
  readonly index: number;
  readonly isLast: boolean;
  readonly batch: readonly T[];
  /**
   * What comes out of a channel in this step was given to the step and is not finished: it waits for a later one, also over a
   * resume, or was cut. The journal has that with the step. Items need an `id` of their own.
   */
  readonly carry: (unfinished: Pick<Channel<T>, "batches">, how?: Unfinished<T>) => void;
};

export type Metrics = Readonly<Record<string, number>>;

/** Of so many parts, or of as many as there can be, so many are done. Throws `workflow.invalid` for what is no such share. */
export type Progress = (done: number, total: number) => void;

export type WorkflowContext<C> = {
  readonly cluster: Cluster;
  readonly config: C & RuntimeConfig;
  readonly runId: string;
  /** folder that paths in a configuration are relative to */
  readonly projectRoot: string;
  /**
   * What a module of the project exports, in JavaScript or TypeScript, by its path from the project's root: for code that the
   * configuration names. It runs in the runner's process. Throws `worker.load-failed`, also for what is outside of the project.
   */
  loadModule(path: string): Promise<Record<string, unknown>>;
  /** Tells whoever watches the run; it is in the run's log, too. */
  warn(message: string): void;
  /**
   * The steps that are left to do. The next one begins when as many steps are unfinished as `flow.maxStaleness` allows:
   * with 0, when everything that the last one called has ended and is in the journal. Leave handles unawaited, and the
   * same loop runs on-policy or overlapped, as configured.
   */
  steps<T>(dataset: Dataset<T>): AsyncIterable<Step<T>>;
  /** Metrics of the current step: numbers, or a call whose results are such; ranks are averaged. `accuracy`, `reward` and `tokens` are drawn. */
  report(metrics: Metrics | CallHandle<Metrics>): void;
  /**
   * Does something once in the life of a run, also over resumes; its result is kept in the journal. Whoever watches the run sees
   * `name`, and how far it has come if `act` says so.
   */
  once<T>(name: string, act: (progress: Progress) => PromiseLike<T>): Promise<T>;
};

export type Workflow = {
  readonly kind: "treadle-workflow";
  readonly schema: z.ZodObject;
  readonly run: (context: WorkflowContext<never>) => Promise<void>;
};

/** Defines a workflow: the schema of its own configuration, and what it does. */
export function workflow<Shape extends z.ZodRawShape>(
  config: z.ZodObject<Shape>,
  run: (context: WorkflowContext<z.infer<z.ZodObject<Shape>>>) => Promise<void>,
): Workflow {
  return {
    kind: "treadle-workflow",
    schema: fullSchema(config),
    run: run as unknown as Workflow["run"],
  };
}

/** The keys that every workflow has, and the workflow's own. */
export function fullSchema<Shape extends z.ZodRawShape>(own: z.ZodObject<Shape>): z.ZodObject {
  const clash = Object.keys(own.shape).filter((key) => Object.hasOwn(RuntimeConfig.shape, key));
  if (clash.length > 0) {
    throw new TreadleError(
      "workflow.invalid",
      `the workflow's schema declares ${clash.map((key) => `'${key}'`).join(", ")}, which Treadle defines itself; rename or remove it`,
    );
  }
  // What the workflow says of several of its keys together holds here, too.
  const checks = (own.def.checks ?? []) as readonly unknown[] as readonly z.core.$ZodCheck<Record<string, unknown>>[];
  const full: z.ZodObject = RuntimeConfig.extend(own.shape);
  return full.check(...checks);
}
