/** Messengers that are joined directly: a request is the other side's `deliver`, a few turns later. */
import { type MessageEnvelope, type Peer, TreadleError } from "@treadle/contracts";
import { runInCall } from "../../src/author/call/call-context.ts";
import { Messenger } from "../../src/author/messages/messenger.ts";

export type Delivery = { readonly by: string; readonly to: string };

export type GroupOptions = {
  /** turns that a message takes; default: none */
  readonly delay?: () => number;
  /** of each rank; default: one node for all */
  readonly nodes?: readonly string[];
  readonly peerTimeoutMs?: number;
  /** workers whose processes take nothing and answer nothing */
  readonly silent?: ReadonlySet<string>;
  /** workers that take messages, and no calls yet */
  readonly starting?: ReadonlySet<string>;
  /** workers whose process has not started */
  readonly absent?: ReadonlySet<string>;
  /** told of each message on its way */
  readonly sent?: (delivery: Delivery) => void;
};

export const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

const never = <T>() => new Promise<T>(() => {});

export function ranksOf(component: string, size: number, options: GroupOptions = {}): Messenger[] {
  return joined([[component, size]], options).get(component) as Messenger[];
}

/** Groups of one run, by their names; `nodes` are of all their ranks, one after the other. */
export function joined(
  groups: readonly (readonly [string, number])[],
  options: GroupOptions,
): Map<string, Messenger[]> {
  const {
    delay = () => 0,
    nodes,
    peerTimeoutMs = 60_000,
    silent = new Set(),
    absent = new Set(),
    starting = new Set(),
    sent,
  } = options;
  const names = groups.flatMap(([component, size]) =>
    Array.from({ length: size }, (_, rank) => `${component}/${rank}`),
  );
  const nodeOf = (worker: string): string => nodes?.[names.indexOf(worker)] ?? "a";
  const all = new Map<string, Messenger>();
  const peers = new Map<string, Peer>();
  const connect = async (by: string, to: string): Promise<Peer> => {
    const known = peers.get(`${by}>${to}`);
    if (known) return known;
    let tail: Promise<unknown> = Promise.resolve();
    const request = async (verb: string, body: MessageEnvelope) => {
      if (silent.has(to) || absent.has(to)) return never();
      const other = all.get(to) as Messenger;
      if (verb === "waits") return { waitsFor: other.waitsFor, isStarting: starting.has(to) };
      sent?.({ by, to });
      // A link keeps the order of messages, whatever each takes on its way.
      const arrived = tail.then(async () => {
        for (let turns = delay(); turns > 0; turns--) await turn();
        return { answer: other.deliver(structuredClone(body)) };
      });
      tail = arrived;
      return (await arrived).answer;
    };
    const peer = { request } as unknown as Peer;
    peers.set(`${by}>${to}`, peer);
    return peer;
  };
  const made = groups.map(([component, size]): [string, Messenger[]] => {
    const ranks = Array.from({ length: size }, (_, rank) => {
      const self = `${component}/${rank}`;
      const messenger = new Messenger({
        component,
        rank,
        worldSize: size,
        incarnation: 0,
        node: nodeOf(self),
        connect: (to) => connect(self, to),
        reachable: async (worker) => (absent.has(worker) ? never() : undefined),
        nodesOf: async (workers) => workers.map(nodeOf),
        peerTimeoutMs,
      });
      all.set(self, messenger);
      return messenger;
    });
    return [component, ranks];
  });
  return new Map(made);
}

export const died = new TreadleError("worker.died", "gone", { origin: { worker: "actor/0" } });

/** As calls of a group run: each of these has one attempt of the call. */
export function inCall<T>(
  all: readonly Messenger[],
  sequence: number,
  act: (each: Messenger) => Promise<T>,
): Promise<Awaited<T>[]> {
  const signal = new AbortController().signal;
  return Promise.all(
    all.map((each, rank) =>
      runInCall({ call: `${sequence}/${rank}`, method: "test", step: 1, signal, timers: {} }, () => act(each)),
    ),
  );
}
