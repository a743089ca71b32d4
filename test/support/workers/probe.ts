/** A worker with a method for each thing that a test wants a real process to do. */
import { spawn } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { type Sink, type Source, type StateWriter, Worker, type WorkerGroup } from "@treadle/runtime";
import { z } from "zod";

/** Stands alone, as small items do. */
export const Item = z.object({ id: z.number(), cost: z.number().default(1) });
export const Numbers = z.number().meta({ module: import.meta.url, exportName: "Numbers" });
export const Nested = z.object({
  id: z.string(),
  arrays: z.object({ f: z.instanceof(Float32Array), i: z.array(z.instanceof(Int32Array)) }),
  big: z.bigint(),
  when: z.date(),
  raw: z.instanceof(Uint8Array),
});
export type Nested = z.infer<typeof Nested>;

export type ProbeConfig = {
  readonly greeting?: string;
  readonly memoryBytes?: number;
  readonly setup?: "throw" | "hang" | "slow";
  /** a folder, where each rank leaves a file when it is torn down */
  readonly tornDown?: string;
};

const pause = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

export class ProbeWorker extends Worker<ProbeConfig> {
  static override readonly module: string = import.meta.url;
  readonly swaps: string[] = [];
  readonly notes: string[] = [];
  isLoaded = false;

  override async setup(): Promise<void> {
    if (this.config.setup === "throw") throw new Error("no engine here", { cause: new Error("the driver is missing") });
    if (this.config.setup === "hang") await new Promise(() => {});
    if (this.config.setup === "slow") await new Promise((resolve) => setTimeout(resolve, 5000));
    this.log.info(`set up as ${this.component}/${this.rank}`);
  }
  override async teardown(): Promise<void> {
    const { tornDown } = this.config;
    if (tornDown !== undefined) await writeFile(join(tornDown, `rank-${this.rank}`), "");
  }
  override memoryBytes(): number {
    return this.config.memoryBytes ?? 0;
  }
  override async onload(): Promise<void> {
    this.swaps.push("onload");
    this.isLoaded = true;
  }
  override async offload(): Promise<void> {
    this.swaps.push("offload");
    this.isLoaded = false;
  }

  async whoAmI() {
    const { runId, node, component, rank, worldSize, config } = this;
    return {
      runId,
      node,
      component,
      rank,
      worldSize,
      config,
      pid: process.pid,
      flag: process.env["PROBE_FLAG"],
      title: process.title,
      devices: this.devices.ids,
    };
  }

  /** Breaks the clock by which the reply says how long the call took. */
  async answerNonsense(): Promise<void> {
    performance.now = () => Number.NaN;
    using _ = this.timer("nonsense");
  }

  async wait(ms: readonly number[]): Promise<number> {
    using _ = this.timer("waiting");
    await pause(ms[this.rank] as number);
    return this.rank;
  }

  async fail(rank: number): Promise<string> {
    if (this.rank !== rank) return "fine";
    throw new RangeError("the cup is empty", { cause: new Error("it leaks") });
  }

  /** Fails as if a peer had died, so many times, and writes down each time that it runs. */
  async flaky(times: number): Promise<void> {
    this.notes.push("flaky");
    if (this.notes.filter((note) => note === "flaky").length > times) return;
    throw new TreadleError("worker.died", "a peer is gone", { origin: { worker: this.messages.self } });
  }
  async note(text: string): Promise<string[]> {
    this.notes.push(text);
    return this.notes;
  }
  async forget(): Promise<void> {
    this.notes.length = 0;
  }

  async hang(): Promise<void> {
    await new Promise(() => {});
  }

  async big(bytes: number): Promise<string> {
    return "x".repeat(bytes);
  }

  async hog(mebibytes: number): Promise<void> {
    const kept: Buffer[] = [];
    for (let i = 0; i < mebibytes; i++) {
      kept.push(Buffer.alloc(2 ** 20, 1));
      if (i % 16 === 0) await pause(5);
    }
    await pause(60_000);
    this.log.info(`${kept.length}`);
  }

  /** Starts a process that keeps this one's pipes open; in a session of its own if `detached`, or run by a shell. */
  async leaveChild(detached = false, script = "exec sleep 600"): Promise<number> {
    const child = spawn("sh", ["-c", script], { stdio: "inherit", detached });
    if (detached) child.unref();
    return child.pid as number;
  }

  /** The first process to leave that file finds that it cannot go on; the next one answers. */
  async goOnAfterFailure(file: string): Promise<number> {
    const isFirst = await writeFile(file, "", { flag: "wx" }).then(
      () => true,
      () => false,
    );
    if (!isFirst) return process.pid;
    this.failProcess(new TreadleError("service.failed", "the engine's process is gone"));
    return pause(60_000).then(() => -1);
  }

  async die(code: number): Promise<void> {
    process.stderr.write("#treadle-failure { this is no failure\nmy last words\n", () => process.exit(code));
    await this.hang();
  }

  /** Every rank sends to every one, itself included, twice under each of two tags, and reads in another order. */
  async exchange(): Promise<string[]> {
    const names = Array.from({ length: this.worldSize }, (_, rank) => `${this.component}/${rank}`);
    const sends = names.flatMap((to) => {
      const text = `${this.rank}>${to}`;
      return [
        this.messages.send(to, { text, n: 1, data: Float32Array.of(this.rank, 0.5) }, "a"),
        this.messages.send(to, { text, n: 2, data: new Float32Array(70_000).fill(this.rank) }, "a"),
        this.messages.send(to, { text, n: 3, data: Float32Array.of() }, "b"),
      ];
    });
    const seen: string[] = [];
    for (const from of names.toReversed()) {
      for (const tag of ["b", "a", "a"]) {
        const got = await this.messages.recv<{ text: string; n: number; data: Float32Array }>(from, tag);
        seen.push(`${got.text} ${got.n} ${got.data.constructor.name} ${got.data.length} ${got.data.at(-1) ?? "-"}`);
      }
    }
    await Promise.all(sends);
    return seen;
  }

  async collect() {
    const told = await this.messages.broadcast(this.rank === 1 ? { from: this.rank } : undefined, 1);
    const gathered = await this.messages.gather(`r${this.rank}`, 0);
    const sum = await this.messages.allReduceSum(Float32Array.of(1, this.rank));
    return { told, gathered, sum };
  }

  /** Sends to another component and gets an answer. */
  async greet(worker: string): Promise<unknown> {
    await this.messages.send(worker, `hello from ${this.component}/${this.rank}`, "greeting");
    return this.messages.recv(worker, "answer");
  }
  async answer(worker: string): Promise<void> {
    const greeting = await this.messages.recv<string>(worker, "greeting");
    await this.messages.send(worker, `${greeting}, and hello from ${this.component}/${this.rank}`, "answer");
  }

  async through(group: WorkerGroup<ProbeWorker>): Promise<number[]> {
    return group.wait([1, 2, 3, 4]);
  }
  async failThrough(group: WorkerGroup<ProbeWorker>): Promise<string[]> {
    return group.fail(0);
  }

  async produce(sink: Sink<unknown>, items: readonly unknown[], perPut = 1): Promise<number> {
    for (let i = 0; i < items.length; i += perPut) await sink.put(...items.slice(i, i + perPut));
    return items.length;
  }
  async produceThenFail(sink: Sink<unknown>, items: readonly unknown[]): Promise<void> {
    await sink.put(...items);
    throw new Error("the well ran dry");
  }
  async consume(source: Source<unknown>, size: number, pauseMs = 0): Promise<unknown[]> {
    const seen: unknown[] = [];
    for await (const batch of source.batches({ items: size })) {
      seen.push(...batch);
      if (pauseMs > 0) await pause(pauseMs);
    }
    return seen;
  }
  /** The types of what it takes, as the worker sees them. */
  async inspect(source: Source<Nested>): Promise<string[]> {
    const seen: string[] = [];
    for await (const item of source) {
      const { arrays, big, when, raw } = item;
      const names = [arrays.f, ...arrays.i, when, raw].map((each) => each.constructor.name);
      seen.push(
        `${item.id} ${names.join(" ")} ${typeof big} ${arrays.f.length} ${arrays.i.map((each) => each.at(-1))}`,
      );
    }
    return seen;
  }
  async relay(source: Source<unknown>, sink: Sink<unknown>, size: number): Promise<number> {
    let num = 0;
    for await (const batch of source.batches({ items: size })) {
      await sink.put(...batch);
      num += batch.length;
    }
    return num;
  }

  /** Uses its devices, again and again, and says whether it was alone and loaded whenever it did. */
  async useDevices(times: number, holdMs: number): Promise<boolean> {
    let isSound = true;
    for (let i = 0; i < times; i++) {
      await using _ = await this.devices.lock();
      isSound &&= this.isLoaded;
      {
        await using _nested = await this.devices.lock();
        await pause(holdMs);
        isSound &&= this.isLoaded;
      }
      isSound &&= this.isLoaded;
    }
    return isSound;
  }
  /** Takes its devices and never gives them back. */
  async keepDevices(hangs = false): Promise<void> {
    await this.devices.lock();
    if (hangs) await this.hang();
  }
  async produceLocked(sink: Sink<number>, items: readonly number[]): Promise<void> {
    await using _ = await this.devices.lock();
    for (const item of items) await sink.put(item);
  }
  async relayLocked(source: Source<number>, sink: Sink<number>): Promise<void> {
    await using _ = await this.devices.lock();
    for await (const item of source) await sink.put(item);
  }
  async consumeLocked(source: Source<number>): Promise<{ seen: number[]; isSound: boolean }> {
    await using _ = await this.devices.lock();
    let isSound = this.isLoaded;
    const seen: number[] = [];
    for await (const item of source) {
      seen.push(item);
      isSound &&= this.isLoaded;
    }
    return { seen, isSound };
  }
  /** Asks for an item before it asks for its devices, and waits for it with them. */
  async consumeEarly(source: Source<number>): Promise<readonly number[]> {
    const next = source.take({ items: 1 });
    await using _ = await this.devices.lock();
    return (await next) ?? [];
  }
  async numSwaps(): Promise<{ onload: number; offload: number }> {
    const count = (kind: string) => this.swaps.filter((each) => each === kind).length;
    return { onload: count("onload"), offload: count("offload") };
  }
  async trace(): Promise<void> {
    {
      using _ = this.timer("decode");
      await pause(5);
    }
    process.stdout.write("a line of its own\n");
  }
}

/** Ranks that hold one state together. */
export class TogetherWorker extends ProbeWorker {
  static override readonly restart = "group";
}

/** Its notes are its state, which takes a while to save. */
export class SlowlySavingWorker extends ProbeWorker {
  static override readonly saves = ["note"];

  override async checkpoint(state: StateWriter): Promise<void> {
    await pause(200);
    state.write("notes", this.notes.join());
  }
}
