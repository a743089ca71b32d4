/** What crosses the boundary of the device pool's state machine. */
import type { DeviceLease, PoolMember, PoolWait } from "@treadle/contracts";

export type PoolInput =
  | { readonly type: "join"; readonly run: string; readonly member: PoolMember }
  | { readonly type: "request"; readonly run: string; readonly devices: readonly string[] }
  | { readonly type: "release"; readonly run: string; readonly token: number }
  | { readonly type: "beat"; readonly run: string }
  /** nothing of the run is left on any device, whatever ended it */
  | { readonly type: "gone"; readonly run: string }
  /** time has passed */
  | { readonly type: "tick" };

export type PoolEffect =
  | { readonly type: "admitted"; readonly run: string; readonly memoryMiB: Readonly<Record<string, number>> }
  | { readonly type: "granted"; readonly run: string; readonly lease: DeviceLease }
  /** nothing has changed */
  | { readonly type: "refused"; readonly run: string; readonly why: string }
  /** somebody waits for what the run holds; with `drains` it must release it within the limit */
  | { readonly type: "wanted"; readonly run: string; readonly token: number; readonly drains: boolean }
  /** its lease is over: end every process of it, then say `gone` */
  | { readonly type: "end"; readonly run: string; readonly why: string };

/** One run, at one instant. */
export type PoolMemberView = {
  readonly run: string;
  readonly stage: "queued" | "resident" | "ending";
  readonly maxSlowdown: number | undefined;
  readonly holds: { readonly devices: readonly string[]; readonly forMs: number; readonly drains: boolean } | undefined;
  readonly waits: { readonly forMs: number; readonly on: PoolWait } | undefined;
  /** from joining to its admission */
  readonly queuedMs: number;
  /** it had devices */
  readonly leasedMs: number;
  /** as a resident it asked for devices, and had none */
  readonly waitedMs: number;
  readonly leases: number;
  /** time as a resident over the part of it in which it did not wait */
  readonly slowdown: number | undefined;
};

export type PoolLimits = {
  /** runs that are on one device together, each with memory of its own */
  readonly residents: number;
  /** how long a run of weight 1 keeps what others wait for */
  readonly turnMs: number;
  /** whoever has waited for longer goes before all that came later, whatever their priority */
  readonly patienceMs: number;
  /** from being told to drain until the run is ended */
  readonly yieldMs: number;
  /** a run whose beats stay out for longer is ended */
  readonly beatLimitMs: number;
};
