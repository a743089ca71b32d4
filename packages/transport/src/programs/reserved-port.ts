import { createServer, type Server } from "node:net";

export type ReservedPort = { readonly port: number; release(): void };

/**
 * A free loopback port that no other process of this machine gets from here until it is released, or this process has ended. A
 * server may share its port with any other of its user (SO_REUSEPORT, which vLLM sets), so two that are given the same one would
 * both start, and answer each other's calls. Strangers may still take it. Linux alone has the names that this needs; elsewhere
 * the port is only free.
 */
export async function reservePort(): Promise<ReservedPort> {
  while (true) {
    const probe = await listen({ host: "127.0.0.1", port: 0 });
    const { port } = probe.address() as { readonly port: number };
    await new Promise((closed) => probe.close(closed));
    if (process.platform !== "linux") return { port, release: () => {} };
    try {
      // An abstract name goes with its process, and is as wide as ports are: of this network namespace.
      const claim = await listen({ path: `\0treadle-port-${port}` });
      claim.unref();
      return { port, release: () => void claim.close() };
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EADDRINUSE") throw error;
    }
  }
}

/** Whether somebody listens there. */
export async function isTaken(port: number): Promise<boolean> {
  try {
    const probe = await listen({ host: "127.0.0.1", port });
    await new Promise((closed) => probe.close(closed));
    return false;
  } catch {
    return true;
  }
}

function listen(where: { readonly host: string; readonly port: number } | { readonly path: string }): Promise<Server> {
  return new Promise((resolve, reject) => {
    const server = createServer((socket) => socket.destroy());
    server.once("error", reject);
    server.listen(where, () => resolve(server));
  });
}
