/** What a cluster is made with. */
import {
  type ReadRunFile,
  type RunEvent,
  type RunFilePart,
  type RuntimeConfig,
  type SpanBatch,
  type StateManifest,
  savesInBackground,
} from "@treadle/contracts";
import type { RunnerOptions } from "@treadle/core";
import type { Nodes } from "../nodes/nodes.ts";
import type { PoolClient } from "../nodes/pool-client.ts";
import type { Placer } from "../placement/placement-facts.ts";

/** What processes record for whoever watches the run from outside. */
export type Telemetry = { readonly spanIds: boolean; readonly counters: boolean };

export type ClusterOptions = {
  readonly runId: string;
  readonly config: RuntimeConfig;
  readonly projectRoot: string;
  readonly runFolder: string;
  readonly logs: string;
  /** a folder for the newest state of each component */
  readonly stateFolder: string;
  /** the step that the run goes on after */
  readonly committed?: number | undefined;
  /** told of every state that is in its place */
  readonly onState?: ((folder: string, manifest: StateManifest) => void) | undefined;
  /** a folder for what workers have learned to predict, for later runs; absent: none of it is kept */
  readonly predictorFolder?: string | undefined;
  readonly workflowModule: { readonly url: string; readonly exports: Readonly<Record<string, unknown>> } | undefined;
  readonly onEvent: (event: RunEvent) => void;
  readonly onSpans: (batch: SpanBatch) => void;
  /** who takes the spans wants more of them than a trace does */
  readonly telemetry?: Telemetry | undefined;
  /** somebody asks over the control plane for an end after the step under way */
  readonly onStopAsked?: (() => void) | undefined;
  /** what those see who look at the run from other machines, and whether they have seen all of it */
  readonly shown?: { read(asked: ReadRunFile): Promise<RunFilePart>; areRead(): Promise<void> } | undefined;
  /** the nodes that were found; without them this process is the only one */
  readonly nodes?: Nodes | undefined;
  /** of a run that shares the devices of this machine with others */
  readonly pool?: PoolClient | undefined;
  /** without it the configured mode decides where everything runs */
  readonly placer?: Placer | undefined;
  /** called instead of the first call, by which everything is placed and nothing started */
  readonly dryRun?: (() => never) | undefined;
};

/** What the run's state machine decides by. */
export function machineOptions({ config, pool }: Pick<ClusterOptions, "config" | "pool">): RunnerOptions {
  const { supervision, cluster, flow, checkpoints } = config;
  const { maxRestarts, restartWindowMs, heartbeatTimeoutMs, stallMs, lockTimeoutMs, startTimeoutMs } = supervision;
  return {
    supervision: { maxRestarts, restartWindowMs, heartbeatTimeoutMs, stallMs, lockTimeoutMs, startTimeoutMs },
    rejoinMs: cluster.rejoinMs,
    placeWaitMs: cluster.placeWaitMs,
    maxStaleness: flow.maxStaleness,
    ...(savesInBackground(checkpoints) ? { runsAhead: true } : {}),
    ...(pool ? { isLeased: true } : {}),
  };
}
