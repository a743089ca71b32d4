/**
 * Copies of a trajectory's environment, from which others begin: a rollout that branches, or a test suite that every attempt
 * finds prepared.
 *
 * Owned here: which trajectories began from a snapshot, and when its room is given back.
 *
 * SN1 a snapshot is of files at rest: it is refused while a command of its sandbox runs, and those that come meanwhile wait.
 * SN2 what begins from a snapshot shares nothing with it or with others that did. Its room is given back once, when it was
 *    dropped and every trajectory that began from it, which may need it again, is closed.
 */
import { TreadleError } from "@treadle/contracts";
import type { ContainerOptions, ExecRequest, Snapshot } from "../drivers/sandbox.ts";
import type { ShellSession } from "./shell-session.ts";

export type SnapshotContent = {
  readonly files: Snapshot;
  readonly sessions: ReadonlyMap<string, ShellSession>;
  /** of the trajectory that it is of, and of those that begin from it */
  readonly environment: ExecRequest["environment"];
  readonly container: ContainerOptions | undefined;
};

export class TrajectorySnapshot {
  readonly content: SnapshotContent;
  #numUsers = 0;
  #isDropped = false;

  constructor(content: SnapshotContent) {
    this.content = content;
  }

  get bytes(): number {
    return this.content.files.bytes;
  }

  get numUsers(): number {
    return this.#numUsers;
  }

  /** For a trajectory that begins from it. Throws `action.invalid` where it was dropped. */
  hold(): void {
    if (this.#isDropped) throw new TreadleError("action.invalid", "the snapshot was dropped; take another");
    this.#numUsers++;
  }

  async release(): Promise<void> {
    this.#numUsers--;
    await this.#end();
  }

  async drop(): Promise<void> {
    if (this.#isDropped) return;
    this.#isDropped = true;
    await this.#end();
  }

  /** SN2 */
  async #end(): Promise<void> {
    if (this.#isDropped && this.#numUsers === 0) await this.content.files.drop();
  }
}
