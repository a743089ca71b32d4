/** Which call the current code works for; follows every await of a worker method. */
import { AsyncLocalStorage } from "node:async_hooks";
import { type Cancellation, TreadleError } from "@treadle/contracts";
import type { CallMeter } from "./call-meter.ts";

export type CallContext = {
  readonly call: string;
  readonly method: string;
  readonly step: number | undefined;
  readonly signal: Cancellation;
  readonly timers: Record<string, number>;
  /** present in calls that are observed */
  readonly meter?: CallMeter | undefined;
  /** the id of the call's span, where spans have ids */
  span?: string | undefined;
  /** what a method left running goes on, but nothing is done in the call's name any more */
  isOver?: boolean;
};

const storage = new AsyncLocalStorage<CallContext>();

export function runInCall<T>(context: CallContext, act: () => Promise<T>): Promise<T> {
  return storage.run(context, act);
}

export function currentCall(): CallContext | undefined {
  return storage.getStore();
}

/** What `act` awaits is no wait of the call. */
export function unmetered<T>(act: () => T): T {
  const context = storage.getStore();
  return context?.meter ? storage.run({ ...context, meter: undefined }, act) : act();
}

/** The current call, for what makes sense only within one: device locks and channels. */
export function requireCall(what: string): CallContext {
  const context = storage.getStore();
  if (context?.isOver) {
    throw new TreadleError(
      "workflow.invalid",
      `${what} after '${context.method}' had ended; await within the method whatever it begins`,
    );
  }
  if (!context) {
    throw new TreadleError(
      "workflow.invalid",
      `${what} outside of a worker method's call; use it only while a method that the workflow called is running`,
    );
  }
  return context;
}
