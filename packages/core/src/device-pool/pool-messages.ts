/** What crosses the boundary of the device pool's state machine. */
import type { DeviceLease, PoolMember, Work, WorkSample } from "@treadle/contracts";

export type PoolInput =
  | {
      readonly type: "join";
      readonly run: string;
      readonly member: PoolMember;
      /** what a restored run has */
      readonly leases?: readonly DeviceLease[] | undefined;
    }
  /** before all others: the run was admitted by a process that had the pool before, with so much memory */
  | {
      readonly type: "restore";
      readonly run: string;
      readonly member: PoolMember;
      readonly memoryMiB: Readonly<Record<string, number>>;
    }
  | {
      readonly type: "request";
      readonly run: string;
      readonly devices: readonly string[];
      readonly work?: Work | undefined;
    }
  /** what computes under a lease from here on */
  | { readonly type: "uses"; readonly run: string; readonly token: number; readonly work: Work }
  /** answers `share`: nothing but this work computes under the lease from here on; null: it cannot say so */
  | { readonly type: "shares"; readonly run: string; readonly token: number; readonly work: Work | null }
  | ({ readonly type: "worked"; readonly run: string } & WorkSample)
  | { readonly type: "release"; readonly run: string; readonly token: number }
  | { readonly type: "beat"; readonly run: string; readonly done?: number | undefined }
  /** whoever has the pool ends the run, for a reason of its own */
  | { readonly type: "end"; readonly run: string; readonly why: string }
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
  /** somebody would compute beside what computes under the lease now */
  | { readonly type: "share"; readonly run: string; readonly token: number }
  /** who computes beside it from here on; when nobody does, all works may compute under the lease again */
  | { readonly type: "beside"; readonly run: string; readonly token: number; readonly works: Work[] }
  /** its lease is over: end every process of it, then say `gone` */
  | { readonly type: "end"; readonly run: string; readonly why: string };

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
