/** Connections to whatever ports a process listens on, which say nothing and are opened again when they are closed. */
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { connect, type Socket } from "node:net";

export type FloodOptions = {
  /** at once, over all ports */
  readonly connections?: number;
  /** from the end of a connection until it is opened again */
  readonly againMs?: number;
};

type Door = { readonly host: string; readonly port: number };

const listening = "0A";

/** Answers what ends it; undefined when the process listens nowhere. */
export function flood(pid: number, options: FloodOptions = {}): (() => void) | undefined {
  const { connections = 300, againMs = 20 } = options;
  const doors = listeningDoors(pid);
  if (doors.length === 0) return undefined;
  const sockets = new Set<Socket>();
  let isOver = false;
  const open = (at: number) => {
    if (isOver) return;
    const socket = connect(doors[at % doors.length] as Door);
    sockets.add(socket);
    socket
      .on("error", () => {})
      .once("close", () => {
        sockets.delete(socket);
        setTimeout(() => open(at), againMs).unref();
      });
  };
  for (let i = 0; i < connections; i++) open(i);
  return () => {
    isOver = true;
    for (const socket of sockets) socket.destroy();
  };
}

/** From /proc, as a process may be in a network namespace of its own. */
function listeningDoors(pid: number): Door[] {
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
    return ["tcp", "tcp6"].flatMap((family) => {
      const rows = readFileSync(`/proc/${pid}/net/${family}`, "utf8").trim().split("\n").slice(1);
      return rows.flatMap((row) => {
        const columns = row.trim().split(/\s+/);
        const [address = "", port = ""] = (columns[1] ?? "").split(":");
        if (columns[3] !== listening || !inodes.has(columns[9])) return [];
        return [{ host: hostOf(address), port: Number.parseInt(port, 16) }];
      });
    });
  } catch {
    return []; // it has just ended
  }
}

/** The kernel prints addresses as words of four bytes, the last byte first. */
function hostOf(hex: string): string {
  const words = hex.match(/.{8}/g) ?? [];
  const bytes = Buffer.concat(words.map((word) => Buffer.from(word, "hex").reverse()));
  if (bytes.length === 4) return [...bytes].join(".");
  return (bytes.toString("hex").match(/.{4}/g) ?? []).join(":");
}
