/** What crosses the boundary of the device lock's state machine. */
import type { DeviceLease, ReleasableTag, TreadleError } from "@treadle/contracts";

export type RequestId = string | number;
export type StreamRef = { readonly channel: string; readonly stream: string | number };

export type DeviceInput = {
  readonly device: string;
  /** Memory that residents share; `Infinity` for a device whose memory does not matter. */
  readonly capacityBytes: number;
};

export type WorkerInput = {
  readonly worker: string;
  /** The full set, which is always asked for as a whole. */
  readonly devices: readonly string[];
  /** On each of its devices, while loaded. */
  readonly residentBytes: number;
  /** True when the worker starts out loaded; then it must fit beside the residents there are. */
  readonly loaded?: boolean | undefined;
};

export type CallInput = {
  readonly call: string;
  readonly worker: string;
  /** Program order of the runner; the ranks of one group call share it. */
  readonly sequence: number;
  readonly consumes: readonly StreamRef[];
  readonly produces: readonly StreamRef[];
  /**
   * Calls of one gang, such as the ranks of a group whose method runs collectives, are granted all together once each
   * open one has asked. Locked rank by rank, two such groups can each hold half of the devices and wait for ever.
   */
  readonly gang?: string | undefined;
};

export type AcquireInput = {
  readonly request: RequestId;
  readonly call: string;
  readonly nowMs: number;
  /** Limit of the wait, onload included; the lock's own default when absent. */
  readonly timeoutMs?: number | undefined;
  /** What of its worker it needs loaded; all when absent, and of a worker that is one piece. A reclaim needs what it had. */
  readonly tags?: readonly ReleasableTag[] | undefined;
};

/** `tags`: what of the worker is moved, where it is not one piece. */
type SwapEffect<Type extends string> = {
  readonly type: Type;
  readonly worker: string;
  readonly devices: readonly string[];
  readonly tags?: readonly ReleasableTag[] | undefined;
};

export type LockEffect =
  /** Tell the worker to offload; answer with `offloaded`, `offloadFailed` or `workerDied`. */
  | SwapEffect<"offload">
  /** Tell the worker to onload; answer with `onloaded`, `onloadFailed` or `workerDied`. */
  | SwapEffect<"onload">
  | {
      readonly type: "grant";
      readonly request: RequestId;
      readonly call: string;
      readonly worker: string;
      readonly token: number;
    }
  | { readonly type: "refuse"; readonly request: RequestId; readonly call: string; readonly error: TreadleError }
  | LeaseEffect
  /** A release or a loan by somebody whose grant has been revoked; nothing was changed. */
  | { readonly type: "stale"; readonly token: number; readonly error: TreadleError };

/** What a run that shares its devices says to the pool. */
export type LeaseEffect =
  /** All of these together, for that component; answer with `leased`. */
  | { readonly type: "ask-lease"; readonly devices: readonly string[]; readonly component: string }
  /** Nothing is held under it: others may have its devices. */
  | { readonly type: "release-lease"; readonly token: number }
  /** Another component than before computes under it. */
  | { readonly type: "use-lease"; readonly token: number; readonly component: string }
  /** Answers `lease-share`: nothing but this component computes under it from here on; null: it cannot be said. */
  | { readonly type: "share-lease"; readonly token: number; readonly component: string | null };

/** What the pool says to it. */
export type LeaseInput =
  | { readonly type: "leased"; readonly lease: DeviceLease }
  /** others wait for what is leased */
  | { readonly type: "lease-wanted"; readonly token: number; readonly drains: boolean }
  /** another run would compute beside what computes now */
  | { readonly type: "lease-share"; readonly token: number }
  /** none does any more, nor will */
  | { readonly type: "lease-alone"; readonly token: number };

export type Residency = "unloaded" | "onloading" | "loaded" | "partly loaded" | "offloading";

export type LockSnapshot = {
  readonly devices: readonly {
    readonly device: string;
    readonly capacityBytes: number;
    readonly usedBytes: number;
    /** Who holds the device, or is being loaded onto it. */
    readonly holders: readonly string[];
  }[];
  readonly workers: readonly {
    readonly worker: string;
    readonly residency: Residency;
    readonly residentBytes: number;
  }[];
  readonly holds: readonly {
    readonly call: string;
    readonly worker: string;
    readonly token: number;
    readonly count: number;
    readonly lent: boolean;
  }[];
  /** of a pool: what the run has, and what it has asked for */
  readonly leases: readonly {
    readonly devices: readonly string[];
    readonly component: string | undefined;
    readonly state: "asked" | "held" | "wanted by others" | "drains";
  }[];
  readonly waiting: readonly {
    readonly call: string;
    readonly worker: string;
    readonly sinceMs: number;
    readonly state: string;
  }[];
};
