/** What agents and runners that were killed have left on this machine: processes, socket folders and shared memory. */
import { endAbandoned } from "./descendants.ts";
import { removeDeadSocketFolders } from "./socket-folder.ts";

const sweepMs = 60_000;

/** Removes it now and from time to time, as others beside this process may die, too, until what is answered is called. */
export function keepSwept(): () => void {
  let timer: NodeJS.Timeout | undefined;
  let isOver = false;
  const sweep = async (): Promise<void> => {
    await Promise.all([endAbandoned(), removeDeadSocketFolders()]);
    if (!isOver) timer = setTimeout(sweep, sweepMs).unref();
  };
  void sweep();
  return () => {
    isOver = true;
    clearTimeout(timer);
  };
}
