/**
 * Units that a client holds while it does something itself: a call of an external service under a quota, a request to a model
 * service on devices. Each is an action of the pool whose execution is the client's.
 *
 * LE1 a lease ends once: when it is released, when its call ends by anything, or at its deadline; then its units are back.
 * LE2 a refusal that is told with the release (status 429 or 503) stops its quotas before anybody else is granted some.
 */
import type { ActionPool } from "../pool/action-pool.ts";
import type { ActionContext, ActionHandle } from "../pool/action-record.ts";
import { tellRefusal } from "../services/service-request.ts";

/** How the client's own call went, as HTTP has it. */
export type LeaseOutcome = { readonly httpStatus: number; readonly retryAfter: string };

export class Leases {
  readonly #pool: ActionPool;
  readonly #held = new Map<string, (outcome: LeaseOutcome) => void>();

  constructor(pool: ActionPool) {
    this.#pool = pool;
  }

  /** `spec` is an `ActionSpec`. `granted` runs when the units are. The handle's result settles when the lease has ended. */
  acquire(spec: object, granted: (context: ActionContext) => void): ActionHandle<void> {
    return this.#pool.submit(spec, async (context) => {
      await new Promise<void>((resolve) => {
        this.#held.set(context.id, ({ httpStatus, retryAfter }) => {
          tellRefusal(context, httpStatus, retryAfter);
          resolve();
        });
        context.signal.addEventListener("abort", () => resolve(), { once: true });
        granted(context);
      });
      this.#held.delete(context.id);
    });
  }

  /** False when there is no such lease, or not any more. */
  release(id: string, outcome: LeaseOutcome): boolean {
    const end = this.#held.get(id);
    this.#held.delete(id);
    end?.(outcome);
    return end !== undefined;
  }
}
