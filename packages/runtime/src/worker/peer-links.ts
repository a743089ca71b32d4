/**
 * A worker's links to the other workers of its run.
 *
 * Owner of: those that it has dialled. Each is made on first use, to the present incarnation by the runner's registry, and
 * forgotten when it ends.
 *
 * WL1 a worker that is there and does not let this one in is dialled again, where it is by then, for as long as a start may
 *    take (`supervision.startTimeoutMs`); one that is silent, as behind a firewall, a few times.
 */
import { type Link, type Peer, runProtocol, TreadleError } from "@treadle/contracts";
import { createPeer, type Endpoint } from "@treadle/transport";
import { isTurnedAway, mayAnswerYet, untilAnswered } from "../author/dial.ts";

const maxSilentTries = 3;

export type PeerLinksPorts = {
  readonly endpoint: Pick<Endpoint, "connect">;
  /** Where a worker listens; with `ready`, once it takes calls. */
  readonly resolve: (request: { worker: string; ready?: boolean }) => Promise<{ addresses: readonly string[] }>;
  /** told of each new one, before anything arrives on it */
  readonly accept: (peer: Peer) => void;
  readonly startTimeoutMs: number;
};

type Held = { readonly peer: Promise<Peer>; isCallable: boolean };

export class PeerLinks {
  readonly #ports: PeerLinksPorts;
  readonly #held = new Map<string, Held>();

  constructor(ports: PeerLinksPorts) {
    this.#ports = ports;
  }

  connect(worker: string): Promise<Peer> {
    return this.#hold(worker).peer;
  }

  /**
   * One that takes calls. Whether it does is asked once there is a link: whoever was ready before may have died while it was
   * dialled, and the process that takes its place is reached long before it has its state.
   */
  async callable(worker: string): Promise<Peer> {
    for (;;) {
      const held = this.#hold(worker);
      const peer = await held.peer;
      if (!held.isCallable) await this.#ports.resolve({ worker, ready: true });
      if (this.#held.get(worker) !== held) continue; // it has died since
      held.isCallable = true;
      return peer;
    }
  }

  /** Whoever asks for it from now on meets its next incarnation. */
  died(worker: string): void {
    this.#held.delete(worker);
  }

  #hold(worker: string): Held {
    const known = this.#held.get(worker);
    if (known) return known;
    const forget = () => {
      if (this.#held.get(worker) === held) this.#held.delete(worker);
    };
    const peer = this.#dial(worker).then((link) => {
      link.onClose(forget);
      const made = createPeer(link, runProtocol);
      this.#ports.accept(made);
      return made;
    });
    const held: Held = { peer, isCallable: false };
    this.#held.set(worker, held);
    peer.catch(forget);
    return held;
  }

  /** WL1. */
  async #dial(worker: string): Promise<Link> {
    const { endpoint, resolve, startTimeoutMs } = this.#ports;
    let addresses: readonly string[] = [];
    const attempt = async (): Promise<Link> => {
      ({ addresses } = await resolve({ worker }));
      return endpoint.connect(addresses);
    };
    const isWorthAgain = (error: unknown, numTries: number) =>
      mayAnswerYet(error, addresses) && (isTurnedAway(error) || numTries < maxSilentTries);
    try {
      return await untilAnswered(attempt, { isWorthAgain, timeoutMs: startTimeoutMs });
    } catch (cause) {
      if (!(cause instanceof TreadleError) || cause.code !== "link.refused") throw cause;
      const message = `worker '${worker}' cannot be reached: ${cause.message}`;
      throw new TreadleError("link.refused", message, { cause, origin: { worker } });
    }
  }
}
