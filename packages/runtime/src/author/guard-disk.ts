import { TreadleError } from "@treadle/contracts";

/** Names a full disk for what it is. */
export async function guardDisk<T>(path: string, act: () => Promise<T>): Promise<T> {
  try {
    return await act();
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === "ENOSPC") {
      throw new TreadleError("disk.full", `no space left to write '${path}'; free some, then 'treadle resume'`, {
        cause,
      });
    }
    throw cause;
  }
}
