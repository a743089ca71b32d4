/** What agents and runners that were killed have left on this machine: processes, socket folders and shared memory. */
import { endAbandoned } from "./descendants.ts";
import { removeDeadSocketFolders } from "./socket-folder.ts";

const sweepMs = 60_000;
/** to the next look where something is left that is not to stay; twice as long each time */
const soonMs = 500;

/**
 * Removes it now and from time to time, as others beside this process may die, too, until what is answered is called, which looks for
 * folders a last time.
 */
export function keepSwept(): () => Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  let isOver = false;
  let waitMs = soonMs;
  const sweep = async (): Promise<void> => {
    const [isLeft] = await Promise.all([removeDeadSocketFolders(), endAbandoned()]);
    if (isOver) return;
    timer = setTimeout(sweep, isLeft ? waitMs : sweepMs).unref();
    waitMs = isLeft ? Math.min(sweepMs, 2 * waitMs) : soonMs;
  };
  void sweep();
  return async () => {
    isOver = true;
    clearTimeout(timer);
    await removeDeadSocketFolders();
  };
}
