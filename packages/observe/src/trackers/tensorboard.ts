/**
 * Event files of TensorBoard: records framed as TFRecord (length, masked CRC-32C, bytes, masked CRC-32C), each a protocol
 * buffer `Event` with one scalar for each metric.
 */
import { type FileHandle, mkdir, open } from "node:fs/promises";
import { hostname } from "node:os";
import { join } from "node:path";
import { crc32c } from "@treadle/contracts";
import type { TrackedRow, Tracker } from "./tracker-feed.ts";

export class TensorboardTracker implements Tracker {
  readonly name: string;
  readonly #folder: string;
  #file: FileHandle | undefined;

  constructor(folder: string) {
    this.#folder = folder;
    this.name = `TensorBoard's files in '${folder}'`;
  }

  /** Each process that writes has a file of its own: TensorBoard reads them in the order of their names. */
  async open(): Promise<void> {
    await mkdir(this.#folder, { recursive: true });
    const seconds = Math.floor(Date.now() / 1000);
    const name = `events.out.tfevents.${seconds.toString().padStart(10, "0")}.${hostname()}.${process.pid}.0`;
    this.#file = await open(join(this.#folder, name), "a");
    await this.#file.appendFile(record(Buffer.concat([double(1, Date.now() / 1000), text(3, "brain.Event:2")])));
  }

  async write(rows: readonly TrackedRow[]): Promise<void> {
    await this.#file?.appendFile(Buffer.concat(rows.map((row) => record(event(row)))));
  }

  async close(): Promise<void> {
    await this.#file?.close();
  }
}

/** `Event { wall_time = 1, step = 2, summary = 5 { value = 1 { tag = 1, simple_value = 2 } } }` */
function event({ step, atMs, values }: TrackedRow): Buffer {
  const scalars = Object.entries(values).map(([tag, value]) =>
    bytes(1, Buffer.concat([text(1, tag), float(2, value)])),
  );
  return Buffer.concat([double(1, atMs / 1000), varint(2, step), bytes(5, Buffer.concat(scalars))]);
}

function record(data: Buffer): Buffer {
  const head = Buffer.alloc(12);
  head.writeBigUInt64LE(BigInt(data.length));
  head.writeUInt32LE(masked(head.subarray(0, 8)), 8);
  const tail = Buffer.alloc(4);
  tail.writeUInt32LE(masked(data));
  return Buffer.concat([head, data, tail]);
}

/** So that a checksum of data that contain checksums stays one: rotated, and with a constant added. */
function masked(data: Buffer): number {
  const sum = crc32c(data);
  return (((sum >>> 15) | (sum << 17)) + 0xa282ead8) >>> 0;
}

// Fields of protocol buffers.
const key = (field: number, wire: number): Buffer => unsigned(field * 8 + wire);
const varint = (field: number, value: number): Buffer => Buffer.concat([key(field, 0), unsigned(value)]);
const bytes = (field: number, value: Buffer): Buffer => Buffer.concat([key(field, 2), unsigned(value.length), value]);
const text = (field: number, value: string): Buffer => bytes(field, Buffer.from(value));

function unsigned(value: number): Buffer {
  const out: number[] = [];
  let rest = value;
  for (; rest >= 128; rest = Math.floor(rest / 128)) out.push((rest % 128) + 128);
  return Buffer.from([...out, rest]);
}

function double(field: number, value: number): Buffer {
  const out = Buffer.alloc(8);
  out.writeDoubleLE(value);
  return Buffer.concat([key(field, 1), out]);
}

function float(field: number, value: number): Buffer {
  const out = Buffer.alloc(4);
  out.writeFloatLE(value);
  return Buffer.concat([key(field, 5), out]);
}
