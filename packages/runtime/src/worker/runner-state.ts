/** State of a worker on another node than the runner's: its files go, and come, over its link, piece by piece. */
import { mkdir, open, rm } from "node:fs/promises";
import { join } from "node:path";
import type { Peer, StateFile } from "@treadle/contracts";
import { guardDisk } from "../author/guard-disk.ts";
import { type OpenSink, withChecksum } from "../author/state/part-writer.ts";
import type { StateSource } from "../author/state/state-view.ts";

/** Files of the state that is to be in `folder`, where the runner is. */
export function runnerSink(runner: Peer, folder: string): OpenSink {
  return async (name) => {
    let offset = 0;
    const send = async (data: Uint8Array, isLast: boolean) => {
      await runner.request("state.write", { folder, name, offset, data, isLast });
      offset += data.byteLength;
    };
    return withChecksum({
      write: (piece) => send(piece, false),
      end: () => send(new Uint8Array(0), true),
      abandon: async () => {},
    });
  };
}

/** The state that the runner has told this worker to restore. What is asked for is brought below `temporary`. */
export async function runnerSource(
  runner: Peer,
  folder: string,
  temporary: string,
): Promise<StateSource & AsyncDisposable> {
  const manifest = await runner.request("state.open", {});
  const fetched = new Map<string, Promise<string>>();
  const fetch = async (rank: number, { name, sizeBytes }: StateFile): Promise<string> => {
    const path = join(temporary, `${rank}-${name}`);
    await guardDisk(path, async () => {
      await mkdir(temporary, { recursive: true, mode: 0o700 });
      const file = await open(path, "w", 0o600);
      try {
        for (let offset = 0; offset < sizeBytes; ) {
          const piece = await runner.request("state.read", { rank, name, offset });
          if (piece.byteLength === 0) break; // it is shorter than its manifest says, which whoever reads it finds
          await file.appendFile(piece);
          offset += piece.byteLength;
        }
      } finally {
        await file.close();
      }
    });
    return path;
  };
  return {
    folder,
    manifest,
    locate: (rank, file) => {
      const key = `${rank}/${file.name}`;
      const path = fetched.get(key) ?? fetch(rank, file);
      fetched.set(key, path);
      return path;
    },
    [Symbol.asyncDispose]: () => rm(temporary, { recursive: true, force: true }),
  };
}
