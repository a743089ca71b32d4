/** Lets timers, sockets and cancellations through between two pieces of synchronous work. */
export function breathe(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
