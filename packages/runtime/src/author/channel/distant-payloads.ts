/**
 * Large items between nodes, from where they lie to where they are used, past the channel's home.
 *
 * Owner of: this process's links to the depots of other nodes.
 *
 * DP1 before the home learns of an item, its bytes lie on two nodes: the producer's and another one, of a consumer if
 *    there is one. Either may be lost, and the item is delivered all the same; without a second node it is no kept item.
 * DP2 a consumer reads the bytes on its own node where they are there, else it asks one node after the other. An item counts
 *    as lost once nobody listens where it lies: nodes that are there, and crowded by others, are asked until a transfer's end.
 */
import {
  type Cancellation,
  type DepotsReply,
  type KeptCopy,
  type KeptItem,
  type Peer,
  runProtocol,
  TreadleError,
} from "@treadle/contracts";
import { createPeer, decodeItem, type Endpoint, type PayloadReader, type PayloadStore } from "@treadle/transport";
import { isTurnedAway, untilAnswered } from "../dial.ts";

export type DistantPayloadsPorts = {
  /** the node of this process */
  readonly node: string;
  readonly endpoint: Pick<Endpoint, "connect">;
  /** what the runner knows now of the depots of other nodes */
  readonly depots: (channel: string) => Promise<DepotsReply>;
  /** the bytes of an item are not needed here any more */
  readonly letGo: (segment: string) => void;
  /** such as of the call that waits */
  readonly signal?: (() => Cancellation | undefined) | undefined;
};

/** What reads an item that is not in its block. */
export type ReadKept = (item: { readonly segment: string; readonly sizeBytes: number }) => unknown;

/** A node that takes longer to move an item is as good as gone. */
const transferTimeoutMs = 120_000;
/** All that know an item are asked so often before it counts as lost. */
const maxRounds = 6;

export class DistantPayloads {
  readonly #ports: DistantPayloadsPorts;
  readonly #peers = new Map<string, Promise<Peer>>();
  #numCopied = 0;

  constructor(ports: DistantPayloadsPorts) {
    this.#ports = ports;
  }

  /** DP1: the items with where else they are now; undefined when not all of them could be copied. */
  async copy(channel: string, kept: readonly KeptItem[], store: PayloadStore): Promise<KeptItem[] | undefined> {
    const depots = await this.#ports.depots(channel);
    const consuming = depots.filter(({ consumes }) => consumes);
    const first = consuming.length > 0 ? consuming : depots;
    const turn = this.#numCopied++ % Math.max(1, first.length);
    const inTurn = [...first.slice(turn), ...first.slice(0, turn), ...depots.filter((each) => !first.includes(each))];
    for (const depot of inTurn) {
      const copied = await Promise.allSettled(kept.map((item) => this.#copyTo(depot, item, store)));
      const items = copied.map((each) => (each.status === "fulfilled" ? each.value : undefined));
      const copies = items.flatMap((item) => item?.copy ?? []);
      if (copies.length === kept.length) return items as KeptItem[];
      if (copies.length > 0) this.free(depot, copies);
    }
    return undefined;
  }

  /** DP2: resolves when everything is here, with what reads it. */
  async locate(channel: string, kept: readonly KeptItem[], reader: PayloadReader | undefined): Promise<ReadKept> {
    const { node, letGo } = this.#ports;
    const here = new Map<string, string>();
    const far: KeptItem[] = [];
    for (const item of kept) {
      const own = placesOf(item).find((place) => place.node === node);
      if (own) here.set(item.segment, own.segment);
      else far.push(item);
    }
    const fetched = new Map<string, Uint8Array>();
    if (far.length > 0) {
      try {
        await Promise.all(far.map(async (item) => fetched.set(item.segment, await this.#fetch(channel, item))));
      } catch (error) {
        for (const { segment } of kept) letGo(segment);
        throw error;
      }
    }
    return ({ segment, sizeBytes }) => {
      const bytes = fetched.get(segment);
      if (bytes === undefined) return reader?.read(here.get(segment) ?? segment, sizeBytes);
      letGo(segment);
      return decodeItem(bytes);
    };
  }

  /** Says that copies are not needed any more; a node that cannot be told is gone, with all that it kept. */
  free(depot: { readonly addresses: readonly string[] }, copies: readonly Pick<KeptCopy, "segment">[]): void {
    const segments = copies.map(({ segment }) => segment);
    const patience = { isWorthAgain: isTurnedAway, timeoutMs: transferTimeoutMs };
    untilAnswered(() => this.#connect(depot.addresses), patience).then(
      (peer) => peer.notify("payload.free", { segments }),
      () => {},
    );
  }

  async #copyTo({ node, addresses }: DepotsReply[number], item: KeptItem, store: PayloadStore): Promise<KeptItem> {
    const data = store.bytesOf(item.segment, item.sizeBytes);
    if (data === undefined) return item;
    const peer = await this.#connect(addresses);
    const { segment } = await peer.request("payload.keep", { data }, this.#limits());
    if (segment === undefined) return item;
    return { ...item, node: this.#ports.node, copy: { node, segment } };
  }

  /** DP2. */
  #fetch(channel: string, item: KeptItem): Promise<Uint8Array> {
    const isWorthAgain = (error: unknown, numTries: number) =>
      error instanceof TreadleError && error.code === "node.lost" && (numTries < maxRounds || isTurnedAway(error));
    return untilAnswered(() => this.#fetchOnce(channel, item), { isWorthAgain, timeoutMs: transferTimeoutMs });
  }

  /** Rejects with `node.lost` where no place gave it, because of one that is there and crowded if one is. */
  async #fetchOnce(channel: string, item: KeptItem): Promise<Uint8Array> {
    const signal = this.#ports.signal?.();
    if (signal?.aborted)
      throw new TreadleError("call.cancelled", "nobody waits for the item", { cause: signal.reason });
    const depots = await this.#ports.depots(channel);
    let cause: unknown;
    for (const { node, segment } of placesOf(item)) {
      const depot = depots.find((each) => each.node === node);
      if (!depot) continue;
      try {
        const peer = await this.#connect(depot.addresses);
        const request = { segment, sizeBytes: item.sizeBytes };
        return await peer.request("payload.read", request, this.#limits());
      } catch (error) {
        if (error instanceof TreadleError && error.disposition === "cancelled") throw error;
        if (!isTurnedAway(cause)) cause = error;
      }
    }
    const nodes = placesOf(item).map(({ node }) => `'${node}'`);
    throw new TreadleError(
      "node.lost",
      `an item of channel '${channel}' lay on ${nodes.join(" and ")}, which are gone; 'treadle resume' does its step again`,
      { cause },
    );
  }

  #limits(): { timeoutMs: number; signal: Cancellation | undefined } {
    return { timeoutMs: transferTimeoutMs, signal: this.#ports.signal?.() };
  }

  #connect(addresses: readonly string[]): Promise<Peer> {
    const key = addresses.join(" ");
    let peer = this.#peers.get(key);
    if (!peer) {
      peer = this.#ports.endpoint.connect(addresses).then((link) => {
        link.onClose(() => this.#peers.delete(key));
        return createPeer(link, runProtocol);
      });
      this.#peers.set(key, peer);
      peer.catch(() => this.#peers.delete(key));
    }
    return peer;
  }
}

function placesOf({ node, segment, copy }: KeptItem): KeptCopy[] {
  return [...(node === undefined ? [] : [{ node, segment }]), ...(copy ? [copy] : [])];
}
