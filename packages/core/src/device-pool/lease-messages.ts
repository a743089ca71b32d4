/** What a run's lock says of leases as its pool is told it, and back. */
import type { PoolReply, PoolRequest, Work } from "@treadle/contracts";
import type { LeaseEffect, LeaseInput } from "../device-lock/lock-messages.ts";

/** `workOf`: as which a component is known in all runs. */
export function leaseRequest(effect: LeaseEffect, workOf: (component: string) => Work): PoolRequest {
  switch (effect.type) {
    case "ask-lease":
      return { type: "request", devices: [...effect.devices], work: workOf(effect.component) };
    case "release-lease":
      return { type: "release", token: effect.token };
    case "use-lease":
      return { type: "uses", token: effect.token, work: workOf(effect.component) };
    case "share-lease": {
      const { token, component } = effect;
      return { type: "shares", token, work: component === null ? null : workOf(component) };
    }
  }
}

/** Undefined where it does not concern the lock. */
export function leaseInput(reply: PoolReply): LeaseInput | undefined {
  switch (reply.type) {
    case "granted":
      return { type: "leased", lease: reply.lease };
    case "wanted":
      return { type: "lease-wanted", token: reply.token, drains: reply.drains };
    case "share":
      return { type: "lease-share", token: reply.token };
    case "beside":
      return reply.works.length === 0 ? { type: "lease-alone", token: reply.token } : undefined;
    default:
      return undefined;
  }
}
