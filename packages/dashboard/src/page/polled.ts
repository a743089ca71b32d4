/** What is asked for again and again, as long as it is looked at. */
import type { ViewPorts } from "./view-ports.ts";

const pollMs = 2000;

export type Polled<T> = {
  readonly found: T | undefined;
  readonly problem: string | undefined;
  close(): void;
};

export function poll<T>(get: () => Promise<T>, { redraw, onConnection }: ViewPorts): Polled<T> {
  let found: T | undefined;
  let problem: string | undefined;
  let isClosed = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const look = async (): Promise<void> => {
    try {
      found = await get();
      problem = undefined;
      onConnection("live");
    } catch (error) {
      problem = (error as Error).message;
      if (found !== undefined) onConnection("lost");
    }
    if (isClosed) return;
    redraw();
    timer = setTimeout(look, pollMs);
  };
  void look();
  return {
    get found() {
      return found;
    },
    get problem() {
      return problem;
    },
    close() {
      isClosed = true;
      clearTimeout(timer);
    },
  };
}
