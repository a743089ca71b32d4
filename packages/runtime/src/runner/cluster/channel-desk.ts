/**
 * Where puts and takes of a run arrive: blocks of items are taken apart for `RunnerState`, and batches put together.
 *
 * Owner of: the definitions of the channels, and nothing of what is in them.
 */
import type { CommitRequest, ItemBlock, PutRequest, TakeRequest } from "@treadle/contracts";
import type { Incarnation, PayloadEffect, PolicyName, UserPolicy } from "@treadle/core";
import type { HomePort, Payloads } from "../../author/channel/channel-client.ts";
import type { RunnerLoop } from "../loop/runner-loop.ts";
import { BlockItems, joinItems } from "./item-blocks.ts";

export type ChannelDefinition = {
  readonly name: string;
  readonly capacity: number;
  readonly pick: PolicyName | UserPolicy;
};

export type PackedBatch = { readonly blocks: ItemBlock[]; readonly deliveries?: number[] } | null;

export type ChannelDeskPorts = {
  readonly loop: RunnerLoop;
  /** where this process keeps the large items that it puts and takes itself */
  readonly payloads?: Payloads | undefined;
  /** a segment is free: its producer may write it again, or somebody must remove it */
  readonly onFreed?: ((effect: PayloadEffect) => void) | undefined;
};

export class ChannelDesk implements HomePort {
  readonly #ports: ChannelDeskPorts;

  constructor(ports: ChannelDeskPorts) {
    this.#ports = ports;
    ports.loop.on("free", ({ payload }) => ports.onFreed?.(payload));
  }

  get payloads(): Payloads | undefined {
    return this.#ports.payloads;
  }

  define({ name, capacity, pick }: ChannelDefinition): void {
    this.#ports.loop.feed({ type: "define-channel", name, capacity, pick });
  }

  /** The workflow's own end of a channel. */
  open(call: string, channel: string, role: "source" | "sink", stream: string): void {
    this.#ports.loop.feed({ type: "open", call, end: { channel, role, stream } });
  }

  close(call: string): void {
    this.#ports.loop.feed({ type: "close", call, outcome: { ok: true } });
  }

  async put({ items: block, ...request }: PutRequest, from?: Incarnation): Promise<void> {
    const items = new BlockItems(block);
    await this.#ports.loop.ask({ type: "put", from, ...request, items, kept: block.kept });
  }

  async commitFor({ outputs, ...request }: CommitRequest, from: Incarnation): Promise<void> {
    const made = outputs && {
      channel: outputs.channel,
      items: new BlockItems(outputs.items),
      kept: outputs.items.kept,
    };
    await this.#ports.loop.ask({ type: "commit", from, ...request, outputs: made });
  }

  async take({ streams, ...request }: TakeRequest, from?: Incarnation): Promise<PackedBatch> {
    const answer = await this.#ports.loop.ask({ type: "take", from, ...request, streams });
    if (answer.type !== "batch") return null;
    const batch = joinItems(answer.items);
    return streams ? { ...batch, deliveries: answer.items.map(({ delivery }) => delivery) } : batch;
  }

  /** A consumer has let go of the memory of items that their producers keep. */
  read(worker: string, segments: readonly string[]): void {
    this.#ports.loop.feed({ type: "read", worker, segments });
  }
}
