/**
 * The folder of a run's unix sockets: in the system's temporary folder, because the path of a socket must be short.
 *
 * S4: the runner removes it at its end, its workers when they find the runner dead, and the next runner on the machine
 * when neither could. A folder is dead when nobody listens on its runner's socket.
 */
import { mkdtemp, readdir, rm, stat } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const prefix = "treadle-sockets-";
/** A younger folder may belong to a runner that is about to listen. */
const minAgeMs = 60_000;

export const runnerSocket = "runner";

export function makeSocketFolder(): Promise<string> {
  return mkdtemp(join(tmpdir(), prefix));
}

export async function removeDeadSocketFolders(root = tmpdir(), nowMs = Date.now()): Promise<void> {
  const names = await readdir(root).catch(() => []);
  for (const name of names.filter((each) => each.startsWith(prefix))) {
    const folder = join(root, name);
    const found = await stat(folder).catch(() => undefined);
    if (!found || nowMs - found.mtimeMs < minAgeMs || (await listens(join(folder, runnerSocket)))) continue;
    await rm(folder, { recursive: true, force: true }).catch(() => {}); // another user's, perhaps
  }
}

function listens(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path);
    const answer = (isListening: boolean) => {
      socket.destroy();
      resolve(isListening);
    };
    socket.once("connect", () => answer(true));
    // A full backlog is somebody who listens; a missing or a refusing socket is nobody.
    socket.once("error", ({ code }: NodeJS.ErrnoException) => answer(code !== "ECONNREFUSED" && code !== "ENOENT"));
  });
}
