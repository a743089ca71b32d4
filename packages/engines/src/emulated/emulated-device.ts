import { type MemoryTag, TreadleError } from "@treadle/contracts";
import { DeviceMemory, type Held, type MemoryRecord } from "./device-memory.ts";
import { FileLog, MemoryLog, type SharedLog } from "./shared-log.ts";

/**
 * A device that enforces its memory as a GPU does: a component that takes more than is free gets an error, whatever a plan
 * or a lock has promised. With a `path` all processes that open the same file share the device, and one that ends leaves nothing there.
 */
export class EmulatedDevice {
  readonly name: string;
  readonly #memory: DeviceMemory;
  readonly #log: SharedLog<MemoryRecord & { readonly id: string }>;
  readonly #path: string | undefined;
  #lastId = 0;

  constructor(options: { readonly name: string; readonly capacityBytes: number; readonly path?: string | undefined }) {
    this.name = options.name;
    this.#memory = new DeviceMemory(options.capacityBytes);
    this.#path = options.path;
    this.#log = options.path === undefined ? new MemoryLog() : new FileLog(options.path);
  }

  get held(): readonly Held[] {
    this.#read(undefined);
    return this.#memory.held;
  }

  /** Bytes that a component has under a tag from now on. Throws `device.out-of-memory`, and leaves what there was. */
  set(component: string, tag: MemoryTag, bytes: number): void {
    this.#buryTheDead();
    const missingBytes = this.#write({ type: "set", process: process.pid, component, tag, bytes });
    if (missingBytes === 0) return;
    const { capacityBytes, held } = this.#memory;
    const others = held.map((each) => `'${each.component}' has ${each.bytes} for ${each.tag}`).join(", ") || "nothing";
    throw new TreadleError(
      "device.out-of-memory",
      `'${component}' needs '${bytes}' bytes for ${tag} on device '${this.name}', where ${missingBytes} of ${capacityBytes} are missing: ${others}; release what is not used, or use a larger device`,
      { details: { device: this.name, component, tag, bytes, missingBytes, capacityBytes } },
    );
  }

  #write(record: MemoryRecord): number {
    const id = `${process.pid}-${++this.#lastId}`;
    this.#log.append({ ...record, id });
    return this.#read(id);
  }

  /** What became of the record of that id. */
  #read(id: string | undefined): number {
    let missingBytes = 0;
    for (const record of this.#log.read()) {
      const missing = this.#memory.apply(record);
      if (record.id === id) missingBytes = missing;
    }
    return missingBytes;
  }

  /** EM2: nobody tells when a process is killed. */
  #buryTheDead(): void {
    if (this.#path === undefined) return;
    for (const each of new Set(this.held.map((holder) => holder.process))) {
      if (!isAlive(each)) this.#write({ type: "ended", process: each });
    }
  }
}

function isAlive(processId: number): boolean {
  try {
    process.kill(processId, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}
