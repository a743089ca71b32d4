/** Everything that the server and the page say to each other, beside spans, which go as columns. */
import type {
  FlowGraph,
  NodeInfo,
  Plan,
  PlanPrediction,
  RunInfo,
  RunRecord,
  RunStatus,
  RunSummary,
} from "@treadle/contracts";
import type { RunPhase } from "./run-status.ts";
import type { RunState } from "./state.ts";

export type Metric = { readonly step: number; readonly [name: string]: number };

/** One line of the list of runs. */
export type RunRow = {
  readonly runId: string;
  readonly workflow: string;
  readonly mode: string;
  readonly phase: RunPhase;
  readonly startedAtMs: number | undefined;
  readonly changedAtMs: number;
  readonly step: number;
  readonly numSteps: number;
  readonly reward: number | undefined;
  readonly accuracy: number | undefined;
  /** of the reward, thinned */
  readonly curve: readonly number[];
};

/** What changes while a run goes on, small enough to send once a second. */
export type RunNow = {
  readonly runId: string;
  readonly phase: RunPhase;
  readonly remedy: string | undefined;
  readonly state: RunState;
  readonly summary: RunSummary | undefined;
  /** files that could not be read whole, in words */
  readonly damages: readonly string[];
};

/** What seldom changes. */
export type RunFacts = {
  /** as `Versions` has it */
  readonly version: number;
  readonly runId: string;
  readonly workflow: string;
  readonly folder: string;
  readonly config: unknown;
  readonly plan: Plan | undefined;
  readonly prediction: PlanPrediction | undefined;
  readonly graph: FlowGraph | undefined;
};

export type LogLine = {
  readonly atMs?: number | undefined;
  readonly level?: string | undefined;
  readonly text: string;
};
/** Whole lines, and where they are in the file. */
export type LogPage = { readonly lines: readonly LogLine[]; readonly fromByte: number; readonly toByte: number };
export type LoggedWorker = { readonly worker: string; readonly sizeBytes: number };

/**
 * How much there is of what; a page asks for what it lacks. A number that shrinks says: begin again. Spans and episodes are null
 * until somebody has asked for them, since a server reads them only then.
 */
export type Versions = {
  readonly now: number;
  readonly facts: number;
  readonly metrics: number;
  readonly spans: number | null;
  readonly spanGeneration: number;
  /** spans that the trace has beyond these are not read yet */
  readonly isReadingSpans: boolean;
  readonly faults: number;
  readonly episodes: number | null;
};

/** JSON has no NaN: such values travel as these words. */
export const encodeNumber = (_: string, value: unknown): unknown =>
  typeof value === "number" && !Number.isFinite(value) ? { nonFinite: String(value) } : value;
export const decodeNumber = (_: string, value: unknown): unknown =>
  typeof value === "object" && value !== null && "nonFinite" in value ? Number(value.nonFinite) : value;

/** Nodes and runs at a NATS server, as `treadle status` has them. */
export type ClusterStatus = {
  readonly nodes: readonly {
    readonly name: string;
    readonly incarnation: number;
    readonly info: NodeInfo;
    /** no trusted key has announced it, so no run uses it */
    readonly isUntrusted?: boolean;
  }[];
  readonly runs: readonly {
    readonly runId: string;
    readonly info: RunInfo | undefined;
    /** absent when its runner did not answer */
    readonly status: RunStatus | undefined;
    readonly problem: string | undefined;
  }[];
  /** oldest first; `isUntrusted`: keys are given, and no trusted runner has signed it */
  readonly ended: readonly (RunRecord & { readonly isUntrusted?: true })[];
};

/** What an action service does, as `treadle actions top` has it: means in seconds by kind, units by resource, the last grants. */
export type ActionStatus = {
  readonly policy: string;
  readonly isolation: string;
  readonly uptimeSeconds: number;
  readonly draining: boolean;
  readonly waiting: number;
  readonly running: number;
  /** open ones */
  readonly trajectories: number;
  readonly tenants: Readonly<Record<string, { readonly waiting: number; readonly running: number }>>;
  readonly kinds: Readonly<
    Record<
      string,
      {
        readonly completed: number;
        readonly failed: number;
        readonly cancelled: number;
        readonly actSeconds: number;
        readonly queueingSeconds: number;
        readonly executionSeconds: number;
        readonly overheadSeconds: number;
        readonly longestActSeconds: number;
        readonly curve: {
          readonly source: string;
          readonly efficiency: readonly { readonly units: number; readonly efficiency: number }[];
        } | null;
        readonly predictionError: number | null;
      }
    >
  >;
  readonly resources: Readonly<
    Record<
      string,
      {
        readonly units: number;
        readonly held: number;
        readonly heldSeconds: number;
        /** units held, a second each, oldest first */
        readonly timeline: readonly number[];
      }
    >
  >;
  /** machines that commands run on, by name; none where it is the service's own */
  readonly hosts: Readonly<
    Record<
      string,
      {
        readonly cores: number;
        readonly held: number;
        readonly memoryBytes: number;
        readonly reservedBytes: number;
        /** why it is away; empty while it is there */
        readonly away: string;
      }
    >
  >;
  /** newest first */
  readonly started: readonly {
    readonly action: string;
    readonly kind: string;
    readonly tenant: string;
    readonly secondsAgo: number;
    readonly waitedSeconds: number;
    readonly units: Readonly<Record<string, number>>;
    readonly expectedSeconds: number | null;
    readonly why: string;
  }[];
};
