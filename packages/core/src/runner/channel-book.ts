/**
 * The channels of a run by name, and what goes with each of their streams: how it is shared out among the calls that take
 * from it, and which workers they are of. Pure.
 */
import { TreadleError } from "@treadle/contracts";
import type { ChannelSnapshot } from "../channel/channel-messages.ts";
import { ChannelState } from "../channel/channel-state.ts";
import { type PolicyName, pickPolicies, policyOfUser, type UserPolicy } from "../channel/pick-policy.ts";
import { StreamShares } from "../channel/stream-shares.ts";
import type { ChannelEnd } from "./runner-messages.ts";

export class ChannelBook {
  readonly #channels = new Map<string, ChannelState>();
  readonly #limits = new Map<string, number>();
  readonly #shares = new Map<string, StreamShares>();
  /** channel to the workers that take from it, as of its latest stream */
  readonly #consumers = new Map<string, { stream: string; workers: Set<string> }>();
  readonly #onPolicyFailed: (error: TreadleError) => void;

  /** `onPolicyFailed`: a user's policy cannot be relied on. */
  constructor(onPolicyFailed: (error: TreadleError) => void) {
    this.#onPolicyFailed = onPolicyFailed;
  }

  /** Throws `workflow.invalid` for a name that is taken. */
  define(name: string, capacity: number, pick: PolicyName | UserPolicy): void {
    if (this.#channels.has(name)) {
      throw new TreadleError("workflow.invalid", `channel '${name}' is defined twice; give each its own name`);
    }
    const limits = this.#limits;
    const state = new ChannelState({
      name,
      capacity: {
        get items(): number {
          return Math.min(capacity, limits.get(name) ?? capacity);
        },
      },
      policy: typeof pick === "string" ? pickPolicies[pick] : policyOfUser(name, pick, this.#onPolicyFailed),
    });
    this.#channels.set(name, state);
  }

  /** Items that a channel holds at most, below its own capacity. */
  limit(capacity: Readonly<Record<string, number>>): void {
    this.#limits.clear();
    for (const [channel, items] of Object.entries(capacity)) this.#limits.set(channel, items);
  }

  get names(): string[] {
    return [...this.#channels.keys()];
  }

  /** Throws `workflow.invalid` for a name that no channel has. */
  get(name: string): ChannelState {
    const channel = this.#channels.get(name);
    if (channel) return channel;
    const known = this.names.join(", ") || "none";
    throw new TreadleError("workflow.invalid", `no channel is called '${name}'; this run has ${known}`);
  }

  sharesOf(end: ChannelEnd): StreamShares {
    const key = keyOf(end);
    let shares = this.#shares.get(key);
    if (!shares) {
      shares = new StreamShares();
      this.#shares.set(key, shares);
    }
    return shares;
  }

  /** What no call has part in any more. */
  forgetShares(end: ChannelEnd): void {
    if (this.sharesOf(end).isUnused) this.#shares.delete(keyOf(end));
  }

  noteConsumer({ channel, stream }: ChannelEnd, worker: string): void {
    let consumers = this.#consumers.get(channel);
    if (consumers?.stream !== stream) {
      consumers = { stream, workers: new Set() };
      this.#consumers.set(channel, consumers);
    }
    consumers.workers.add(worker);
  }

  /** Those that take from a channel now, or were the last to. */
  consumersOf(channel: string): ReadonlySet<string> {
    return this.#consumers.get(channel)?.workers ?? new Set();
  }

  /** The channels that hold items of a stream, and how many. */
  untaken(stream: string): { channel: string; items: number }[] {
    return [...this.#channels].flatMap(([channel, state]) => {
      const items = state.queuedItems(stream);
      return items > 0 ? [{ channel, items }] : [];
    });
  }

  snapshots(): ChannelSnapshot[] {
    return [...this.#channels.values()].map((state) => state.snapshot());
  }
}

const keyOf = ({ channel, stream }: ChannelEnd): string => `${channel}\n${stream}`;

/** Puts and takes of one step belong together; outside of steps they are in one stream that reopens. */
export const streamOf = (step: number | undefined): string => (step === undefined ? "outside" : `step-${step}`);
