/** Connections to whatever ports a process listens on, which say nothing and are opened again when they are closed. */
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { connect, type Socket } from "node:net";

const numConnections = 300;
const againMs = 20;
const listening = "0A";

/** Undefined when it listens nowhere. */
export function flood(pid: number): (() => void) | undefined {
  const ports = listeningPorts(pid);
  if (ports.length === 0) return undefined;
  const sockets = new Set<Socket>();
  let isOver = false;
  const open = (at: number) => {
    if (isOver) return;
    const socket = connect(ports[at % ports.length] as { host: string; port: number });
    sockets.add(socket);
    socket
      .on("error", () => {})
      .once("close", () => {
        sockets.delete(socket);
        setTimeout(() => open(at), againMs);
      });
  };
  for (let i = 0; i < numConnections; i++) open(i);
  return () => {
    isOver = true;
    for (const socket of sockets) socket.destroy();
  };
}

/** From /proc, as a process may be in a network namespace of its own. */
function listeningPorts(pid: number): { readonly host: string; readonly port: number }[] {
  try {
    const inodes = new Set(
      readdirSync(`/proc/${pid}/fd`).map((fd) => {
        try {
          return /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`))?.[1];
        } catch {
          return undefined; // it has just been closed
        }
      }),
    );
    const rows = readFileSync(`/proc/${pid}/net/tcp`, "utf8").trim().split("\n").slice(1);
    return rows.flatMap((row) => {
      const columns = row.trim().split(/\s+/);
      const [address = "", port = ""] = (columns[1] ?? "").split(":");
      if (columns[3] !== listening || !inodes.has(columns[9])) return [];
      const bytes = Buffer.from(address, "hex").reverse();
      return [{ host: [...bytes].join("."), port: Number.parseInt(port, 16) }];
    });
  } catch {
    return []; // it has just ended
  }
}
