import type { ContainerGroup } from "./container-group.ts";

/** After the last direct write; the engine is told of the cores that it did not set itself. */
const reconcileMs = 1000;

/**
 * The cores of one container, which are those of the commands that run in it.
 *
 * The engine's `update` takes milliseconds; a write to the control group takes microseconds, but the engine does not know of
 * it, and writes its own record back at the next `update` or reload of systemd. So every use reads the group back and
 * repairs it, and once the writes have paused, the engine's record is made to say the same (reconciliation).
 */
export class ContainerCores {
  readonly #group: ContainerGroup | undefined;
  readonly #update: (list: string) => Promise<void>;
  readonly #running = new Map<object, readonly number[]>();
  #recorded = "";
  #wanted = "";
  /** what the group says when it holds `#wanted` */
  #seen = "";
  #timer: NodeJS.Timeout | undefined;
  #last: Promise<void> = Promise.resolve();

  /** `update` is the engine's; without `group` there is no other way. */
  constructor(group: ContainerGroup | undefined, update: (list: string) => Promise<void>) {
    this.#group = group;
    this.#update = update;
  }

  /** For a command that runs from now on; with others at the same time, all of them have all their cores. */
  async hold(cores: readonly number[]): Promise<() => void> {
    const key = {};
    const release = (): void => void this.#running.delete(key);
    this.#running.set(key, cores);
    try {
      await this.set([]);
    } catch (error) {
      release(); // it does not run: its cores are nobody's
      throw error;
    }
    return release;
  }

  /** For an action of a held shell, and what else runs. */
  set(cores: readonly number[]): Promise<void> {
    const list = [...new Set([...cores, ...[...this.#running.values()].flat()])].sort((a, b) => a - b).join();
    return this.#inTurn(() => this.#apply(list));
  }

  close(): void {
    clearTimeout(this.#timer);
  }

  async #apply(list: string): Promise<void> {
    if (this.#group === undefined) {
      if (list !== this.#recorded) await this.#update(list);
      this.#recorded = list;
      return;
    }
    const isAsWritten = this.#group.cores() === this.#seen;
    if (list === this.#wanted && isAsWritten) return;
    if (!isAsWritten) this.#recorded = ""; // another writer may have changed the engine's record, too
    this.#write(this.#group, list);
    this.#reconcileLater();
  }

  #reconcileLater(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#inTurn(() => this.#reconcile()).catch(() => {}), reconcileMs);
    this.#timer.unref();
  }

  #write(group: ContainerGroup, list: string): void {
    group.setCores(list);
    this.#wanted = list;
    this.#seen = group.cores();
  }

  async #reconcile(): Promise<void> {
    if (this.#group === undefined || this.#recorded === this.#wanted) return;
    await this.#update(this.#wanted);
    this.#recorded = this.#wanted;
    if (this.#group.cores() === this.#seen) return;
    this.#recorded = "";
    this.#write(this.#group, this.#wanted);
    this.#reconcileLater();
  }

  #inTurn(run: () => Promise<void>): Promise<void> {
    const turn = this.#last.then(run);
    this.#last = turn.catch(() => {});
    return turn;
  }
}
