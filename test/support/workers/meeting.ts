/** A worker whose ranks meet while they are set up, as those of a model that spans processes do. */
import { Worker } from "@treadle/runtime";

export type MeetingConfig = {
  /** `all`: collectives; `circle`: each waits for the next one; `dies`: rank 1 ends itself the first time, by this mark */
  readonly meets: "all" | "circle" | { readonly dies: string };
};

export class MeetingWorker extends Worker<MeetingConfig> {
  static override readonly module: string = import.meta.url;
  static override readonly restart = "group";
  #met = { address: "", sum: 0 };

  override async setup(): Promise<void> {
    const { meets } = this.config;
    if (meets === "circle") await this.messages.recv(`${this.component}/${(this.rank + 1) % this.worldSize}`, "hello");
    if (typeof meets === "object" && this.rank === 1) await this.#dieOnce(meets.dies);
    const address = await this.messages.broadcast(this.rank === 0 ? "the first rank's" : "");
    const [sum] = await this.messages.allReduceSum(Float64Array.of(this.rank + 1));
    this.#met = { address, sum: sum as number };
  }

  async #dieOnce(mark: string): Promise<void> {
    const { writeFile } = await import("node:fs/promises");
    const isFirst = await writeFile(mark, "", { flag: "wx" }).then(
      () => true,
      () => false,
    );
    if (!isFirst) return;
    process.kill(process.pid, "SIGKILL");
    await new Promise(() => {});
  }

  async met(): Promise<{ address: string; sum: number }> {
    return this.#met;
  }
}
