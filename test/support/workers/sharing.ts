/** Workers whose ranks hold, save and restore a part each of one state. */
import { type StateReader, type StateWriter, Worker } from "@treadle/runtime";

/** Each rank counts its own calls, and keeps whose part it restored. */
export class SharesWorker extends Worker {
  static override readonly module: string = import.meta.url;
  static override readonly restart: "rank" | "group" = "group";
  static override readonly saves = ["count"];
  static override readonly savesOn = "every-rank";
  protected counted: string[] = [];

  async count(): Promise<string[]> {
    this.counted.push(`${this.rank}`);
    return this.counted;
  }
  async show(): Promise<string[]> {
    return this.counted;
  }
  async die(): Promise<void> {
    process.kill(process.pid, "SIGKILL");
    await new Promise(() => {});
  }

  override async checkpoint(state: StateWriter): Promise<void> {
    state.write("counted", JSON.stringify(this.counted));
    state.write("weights", new Uint8Array(100_000).fill(this.rank));
  }
  override async restore(state: StateReader): Promise<void> {
    for await (const piece of state.stream("weights")) {
      if (piece.some((value) => value !== this.rank)) throw new Error(`rank ${this.rank} got the weights of another`);
    }
    this.counted = JSON.parse(await state.text("counted"));
  }
}

/** Takes any number of parts: every rank knows what all of them had counted. */
export class DividingWorker extends SharesWorker {
  static override readonly module: string = import.meta.url;

  override async restore(state: StateReader): Promise<void> {
    const parts = Array.from({ length: state.numParts }, (_, rank) => state.part(rank).text("counted"));
    this.counted = (await Promise.all(parts)).flatMap((text) => JSON.parse(text) as string[]);
  }
}

/** Parts of one state, and ranks that start again alone. */
export class AloneWorker extends SharesWorker {
  static override readonly module: string = import.meta.url;
  static override readonly restart: "rank" | "group" = "rank";
}
