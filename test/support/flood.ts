/** Connections to whatever ports a process listens on, which say nothing and are opened again when they are closed. */
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { connect, type Socket } from "node:net";

export type FloodOptions = {
  /** at each door at once */
  readonly connections?: number;
  /** from the end of a connection until it is opened again */
  readonly againMs?: number;
};

type Door = { readonly host: string; readonly port: number };

const listening = "0A";

export class Flood implements AsyncDisposable {
  readonly #connections: number;
  readonly #againMs: number;
  readonly #sockets = new Set<Socket>();
  readonly #doors = new Set<string>();
  /** the processes with a door at which there is one */
  readonly pids = new Set<number>();
  #isOver = false;
  #numConnected = 0;

  constructor({ connections = 300, againMs = 20 }: FloodOptions = {}) {
    this.#connections = connections;
    this.#againMs = againMs;
  }

  /** At every door that this process has open now; false when it has none. */
  at(pid: number): boolean {
    const doors = listeningDoors(pid);
    for (const door of doors) {
      const key = `${door.host} ${door.port}`;
      if (this.#isOver || this.#doors.has(key)) continue;
      this.#doors.add(key);
      for (let i = 0; i < this.#connections; i++) this.#open(door);
    }
    if (doors.length > 0) this.pids.add(pid);
    return doors.length > 0;
  }

  /** How often a connection has stood. */
  get numConnected(): number {
    return this.#numConnected;
  }

  end(): void {
    this.#isOver = true;
    for (const socket of this.#sockets) socket.destroy();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.end();
  }

  #open(door: Door): void {
    if (this.#isOver) return;
    const socket = connect(door);
    this.#sockets.add(socket);
    socket
      .on("connect", () => {
        this.#numConnected++;
      })
      .on("error", () => {})
      .once("close", () => {
        this.#sockets.delete(socket);
        setTimeout(() => this.#open(door), this.#againMs).unref();
      });
  }
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
