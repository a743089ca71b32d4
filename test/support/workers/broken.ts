/** A module that cannot be loaded in a worker process. */
import { Worker } from "@treadle/runtime";

if (process.env["TREADLE_DEVICES"] !== undefined) throw new Error("this module needs a robot");

export class BrokenWorker extends Worker {
  static override readonly module: string = import.meta.url;
  async work(): Promise<void> {}
}
