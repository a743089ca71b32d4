/**
 * Processes that have loaded Treadle and wait to be told which worker they are, so that one that has died is soon replaced:
 * most of a worker's start is loading.
 *
 * Owner of: the processes that wait.
 *
 * SPH1 a process is given to one worker, and to one alone that would be started in the same way, by the same code.
 * SPH2 it loads Treadle's packages and nothing of the project before it is given.
 * SPH3 none is started while workers are: what they need comes first.
 * SPH4 after `close`, and when this process is gone, none is left; without a run they end after a while.
 */
import { HostProcess, type HostStart } from "./host-process.ts";

/** What waits is for workers like those that were started last. */
type Kind = { readonly key: string; readonly start: Required<HostStart> };

export type SpareHostsOptions = {
  /** name of the node */
  readonly node: string;
  /** processes that wait, at most */
  readonly count: number;
  /** without a start before the next process is made; default 3 s */
  readonly quietMs?: number;
  /** from the end of the last run until they end; default 30 s */
  readonly restMs?: number;
};

export class SpareHosts {
  readonly #node: string;
  readonly #count: number;
  readonly #quietMs: number;
  readonly #restMs: number;
  #waiting: { readonly key: string; readonly host: HostProcess }[] = [];
  /** the newest first */
  #wanted: Kind[] = [];
  #refill: NodeJS.Timeout | undefined;
  #resting: NodeJS.Timeout | undefined;
  #isClosed = false;

  constructor({ node, count, quietMs = 3000, restMs = 30_000 }: SpareHostsOptions) {
    this.#node = node;
    this.#count = count;
    this.#quietMs = quietMs;
    this.#restMs = restMs;
    process.once("exit", this.#endAllNow);
  }

  /** One that waits and fits, or none; either way the next may find one. `codeHash`: of all code that it may have loaded. */
  take(start: Required<HostStart>, codeHash: string): HostProcess | undefined {
    if (this.#isClosed) return undefined;
    const kind = { key: JSON.stringify([codeHash, start]), start };
    this.#wanted = [kind, ...this.#wanted].slice(0, this.#count);
    const found = this.#waiting.find(({ key }) => key === kind.key);
    if (found !== undefined) this.#forget(found.host);
    this.#endUnwanted();
    clearTimeout(this.#resting);
    this.#refillLater(); // SPH3
    return found?.host;
  }

  /** No run is here: they may end, unless one comes soon. */
  rest(): void {
    clearTimeout(this.#resting);
    this.#resting = setTimeout(() => {
      this.#wanted = [];
      this.#endUnwanted();
    }, this.#restMs);
    this.#resting.unref();
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#refill);
    clearTimeout(this.#resting);
    this.#wanted = [];
    this.#endUnwanted();
    process.off("exit", this.#endAllNow);
  }

  #refillLater(): void {
    clearTimeout(this.#refill);
    this.#refill = setTimeout(() => void this.#startOne(), this.#quietMs);
    this.#refill.unref();
  }

  async #startOne(): Promise<void> {
    const kind = this.#missing();
    if (kind === undefined) return;
    // What cannot be started here cannot be started for a worker either, which then says why.
    const host = await HostProcess.start(this.#node, kind.start).catch(() => undefined);
    if (host === undefined) return;
    const ended = () => {
      if (!this.#forget(host)) return; // it was given, or ended by this process
      this.#wanted = this.#wanted.filter(({ key }) => key !== kind.key); // others of its kind would end, too
      void host.descendants.end();
    };
    host.child.once("exit", ended).once("error", ended);
    this.#waiting.push({ key: kind.key, host });
    this.#endUnwanted(); // as this process may have been closed meanwhile
    if (this.#missing() !== undefined) this.#refillLater();
  }

  /** The first that is wanted more often than it waits. */
  #missing(): Kind | undefined {
    const left = this.#waiting.map(({ key }) => key);
    return this.#wanted.find(({ key }) => {
      const at = left.indexOf(key);
      if (at >= 0) left.splice(at, 1);
      return at < 0;
    });
  }

  #endUnwanted(): void {
    const left = this.#wanted.map(({ key }) => key);
    for (const { key, host } of [...this.#waiting]) {
      const at = left.indexOf(key);
      if (at >= 0) left.splice(at, 1);
      else if (this.#forget(host)) {
        host.kill();
        void host.descendants.end();
      }
    }
  }

  #forget(host: HostProcess): boolean {
    const num = this.#waiting.length;
    this.#waiting = this.#waiting.filter((each) => each.host !== host);
    return this.#waiting.length < num;
  }

  readonly #endAllNow = (): void => {
    for (const { host } of this.#waiting) host.endNow();
  };
}
