/**
 * What crosses the boundary of `RunnerState`: everything that happens to a run, and everything that is to be done about
 * it. Arguments, results and the bytes of items stay with the shell, under the ids that stand here.
 */
import type {
  DeviceSpec,
  ErrorRecord,
  KeptItem,
  RankPlacement,
  ReleasableTag,
  TreadleError,
  WaitTerms,
  WorkerMemory,
} from "@treadle/contracts";
import type { CallOutcome, ItemList, ItemView } from "../channel/channel-messages.ts";
import type { PayloadEffect } from "../channel/kept-payloads.ts";
import type { PolicyName, UserPolicy } from "../channel/pick-policy.ts";
import type { LeaseEffect, LeaseInput } from "../device-lock/lock-messages.ts";
import type { RecoverySeconds } from "../ranks/recovery.ts";
import type { Place } from "../ranks/relocate.ts";

/** One process of a rank. What comes from any but the present one changes nothing (RK2). */
export type Incarnation = { readonly worker: string; readonly incarnation: number };

export type ChannelEnd = { readonly channel: string; readonly role: "source" | "sink"; readonly stream: string };

export type AwaitedMessage = { readonly from: string; readonly what: string };

/** What the class of a component says of it. */
export type ComponentTraits = {
  readonly component: string;
  readonly restart: "rank" | "group";
  readonly resizes: boolean;
  /** methods that a restarted process must have run before it is ready */
  readonly replays: readonly string[];
  /** components with which it is to share no device (`placement.wishes.apart`) */
  readonly apart?: readonly string[] | undefined;
};

/** Requests are answered once each, by `answer` or `reject`, under the id that the shell chose. */
export type RunnerInput =
  // What there is.
  | {
      readonly type: "define-channel";
      readonly name: string;
      readonly capacity: number;
      readonly pick: PolicyName | UserPolicy;
    }
  | ({ readonly type: "add-component" } & ComponentTraits)
  /** items that channels may hold under the present plan, where that is less than their capacity */
  | { readonly type: "limit-channels"; readonly capacity: Readonly<Record<string, number>> }
  | { readonly type: "nodes"; readonly present: readonly string[]; readonly places: readonly DeviceSpec[] }
  /** makes the ranks of these components, which have none, and starts them; others go on */
  | {
      readonly type: "lay-out";
      readonly components: Readonly<Record<string, { readonly ranks: readonly RankPlacement[] }>>;
    }
  /** between steps, while no call is open; `adopted` follows */
  | {
      readonly type: "adopt";
      readonly components: Readonly<Record<string, { readonly ranks: readonly RankPlacement[] }>>;
    }
  // The workflow.
  | {
      readonly type: "call";
      readonly sequence: number;
      readonly component: string;
      readonly method: string;
      readonly ranks: readonly number[];
      readonly ends: readonly ChannelEnd[];
      readonly step?: number | undefined;
      /** it changes the state of its component, told where that is not saved before the call ends (`runsAhead`) */
      readonly changes?: boolean | undefined;
    }
  /** the workflow's own end of a channel */
  | { readonly type: "open"; readonly call: string; readonly end: ChannelEnd }
  | { readonly type: "close"; readonly call: string; readonly outcome: CallOutcome }
  | { readonly type: "begin-step" | "end-body" | "committed"; readonly step: number }
  /** something else that a step waits for has begun, or has ended */
  | { readonly type: "begin-work" | "end-work"; readonly step: number }
  // Requests of calls. Absent `from`: the workflow itself.
  | ({
      readonly type: "put";
      readonly request: number;
      readonly from?: Incarnation | undefined;
      readonly call: string;
      readonly channel: string;
      readonly items: ItemList;
      readonly kept?: readonly KeptItem[] | undefined;
    } & WaitTerms)
  | ({
      readonly type: "take";
      readonly request: number;
      readonly from?: Incarnation | undefined;
      readonly call: string;
      readonly channel: string;
      /** first acknowledges what the call holds (C6) */
      readonly acknowledge: boolean;
      readonly maxItems?: number | undefined;
      readonly maxWeight?: number | undefined;
      readonly minItems?: number | undefined;
      readonly key?: string | undefined;
      /** what it delivers is acknowledged by commits alone, until the call ends */
      readonly streams?: boolean | undefined;
      /** its part of the next round of its call's ranks (C8) */
      readonly inGang?: boolean | undefined;
    } & WaitTerms)
  /** acknowledges these deliveries, and makes what was made of them visible, together (C6) */
  | ({
      readonly type: "commit";
      readonly request: number;
      readonly from: Incarnation;
      readonly call: string;
      readonly channel: string;
      readonly deliveries: readonly number[];
      readonly outputs?:
        | { readonly channel: string; readonly items: ItemList; readonly kept?: readonly KeptItem[] | undefined }
        | undefined;
    } & WaitTerms)
  /** nothing computes on its devices: a call that waits lends them, unless it has been answered anything since */
  | { readonly type: "lend"; readonly from: Incarnation; readonly call: string; readonly numAnswered: number }
  | {
      readonly type: "acquire";
      readonly request: number;
      readonly from: Incarnation;
      readonly call: string;
      /** what of its worker it needs loaded; all when absent */
      readonly tags?: readonly ReleasableTag[] | undefined;
    }
  | {
      readonly type: "release";
      readonly request: number;
      readonly from: Incarnation;
      readonly call: string;
      readonly token: number;
    }
  // The pool, of a run that shares its devices.
  | LeaseInput
  | { readonly type: "read"; readonly worker: string; readonly segments: readonly string[] }
  // Processes.
  | ({ readonly type: "launched" | "connected" | "resized" } & Incarnation)
  | ({ readonly type: "beat"; readonly busyMs: number; readonly stack?: string | undefined } & Incarnation)
  /** it is set up; with `loads` it is loaded, under its lock, before it is ready for calls */
  | ({ readonly type: "ready"; readonly loads?: boolean | undefined } & WorkerMemory & Incarnation)
  /** all messages of others that it has been waiting for */
  | ({ readonly type: "awaits"; readonly messages: readonly AwaitedMessage[] } & Incarnation)
  | ({ readonly type: "replayed"; readonly call: string; readonly failure?: ErrorRecord | undefined } & Incarnation)
  | ({ readonly type: "returned"; readonly call: string; readonly savedPath?: string | undefined } & Incarnation)
  /** the state after a call is on the disk; without a path there was none to save */
  | ({
      readonly type: "durable";
      readonly component: string;
      readonly sequence: number;
      readonly step?: number | undefined;
      readonly path?: string | undefined;
    } & Incarnation)
  | ({ readonly type: "threw"; readonly call: string; readonly error: unknown } & Incarnation)
  | ({
      readonly type: "exited";
      readonly code: number | null;
      readonly signal: string | null;
      readonly failure?: ErrorRecord | undefined;
      readonly logTail: readonly string[];
    } & Incarnation)
  | ({ readonly type: "onloaded" } & WorkerMemory & Incarnation)
  /** `residualBytes` stay on each of its devices, loaded tags included; none when absent */
  | ({ readonly type: "offloaded"; readonly residualBytes?: number | undefined } & Incarnation)
  | ({ readonly type: "swap-failed"; readonly swap: "onload" | "offload"; readonly error: unknown } & Incarnation)
  // The run.
  | { readonly type: "restore"; readonly states: Readonly<Record<string, string>> }
  | { readonly type: "fail"; readonly error: unknown }
  | { readonly type: "end"; readonly error: TreadleError }
  | { readonly type: "tick" };

export type Answer =
  | { readonly type: "batch"; readonly worker: string; readonly items: readonly ItemView[] }
  | { readonly type: "end-of-stream" | "done" }
  | { readonly type: "token"; readonly token: number };

export type RunnerEffect =
  | {
      readonly type: "answer";
      readonly request: number;
      readonly answer: Answer;
      /** when what was asked for was there, where the call then waited for the devices that it had lent (EX3) */
      readonly servedMs?: number | undefined;
    }
  | { readonly type: "reject"; readonly request: number; readonly error: unknown }
  /** a kept item's memory is free */
  | { readonly type: "free"; readonly payload: PayloadEffect }
  // Processes.
  | ({ readonly type: "launch"; readonly place: Place } & Incarnation)
  /** `verdict` is the reason that its exit will have */
  | ({ readonly type: "end-process"; readonly verdict?: ErrorRecord | undefined } & Incarnation)
  /** ask it to end in order, then end it; `exited` follows */
  | ({ readonly type: "stop-process" } & Incarnation)
  /** what it may still send counts no more: cut its link, end what is left of it */
  | ({ readonly type: "discard" } & Incarnation)
  | ({ readonly type: "replay"; readonly call: string; readonly sequence: number; readonly of: number } & Incarnation)
  | ({ readonly type: "resize"; readonly rankDevices: readonly number[] } & Incarnation)
  /** `tags`: what of the worker; all when absent */
  | ({ readonly type: "onload" | "offload"; readonly tags?: readonly ReleasableTag[] | undefined } & Incarnation)
  | ({ readonly type: "peer-died"; readonly dead: string } & Incarnation)
  | ({ readonly type: "give-up"; readonly call: string } & Incarnation)
  /** it is ready for calls */
  | ({ readonly type: "up"; readonly isFirst: boolean; readonly recovery?: RecoverySeconds | undefined } & Incarnation)
  | ({
      readonly type: "died";
      readonly cause: TreadleError;
      readonly code: number | null;
      readonly signal: string | null;
    } & Incarnation)
  | { readonly type: "moved"; readonly worker: string; readonly from: Place; readonly to: Place }
  | LeaseEffect
  // Calls.
  | ({ readonly type: "send"; readonly call: string } & Incarnation)
  | { readonly type: "settle"; readonly call: string }
  | { readonly type: "settle-failed"; readonly call: string; readonly error: unknown }
  /** nobody asks for the arguments of these calls any more */
  | { readonly type: "forget"; readonly sequence: number }
  // The run.
  /** nothing of a step is under way any more, and its commit waits for states (`runsAhead`) */
  | { readonly type: "ended"; readonly step: number }
  | {
      readonly type: "commit";
      readonly step: number;
      readonly seconds: number;
      /** steps before it that are committed with it, since no state was saved after them */
      readonly earlier?: readonly { readonly step: number; readonly seconds: number }[];
      /** by component, the file of its state as of the end of the step */
      readonly states: Readonly<Record<string, string>>;
    }
  /** a state file is whole, and may be asked for */
  | { readonly type: "saved"; readonly path: string }
  | { readonly type: "adopted" }
  /** a `tick` is wanted then, at the latest */
  | { readonly type: "wake"; readonly atMs: number }
  | { readonly type: "waiting"; readonly who: string; readonly on: string; readonly seconds: number }
  /** what a person should know, and what to do about it; the run goes on */
  | { readonly type: "notice"; readonly text: string }
  /** the first failure (S1); nothing goes on */
  | { readonly type: "failed"; readonly error: TreadleError };

export type Emit = (effect: RunnerEffect) => void;
