/** Another network namespace, joined to ours by a cable whose delay and bandwidth can be set; needs root, `ip` and `tc`. */
import { execFile } from "node:child_process";
import { promisify } from "node:util";

const run = promisify(execFile);
const command = (file: string, ...args: string[]) => run(file, args, { timeout: 10_000 });

export type Namespace = AsyncDisposable & {
  /** our end of the cable, and the other one */
  readonly here: string;
  readonly there: string;
  /** what a command is prefixed with to run on the other side */
  readonly inside: readonly string[];
  /** Of each direction; without arguments the cable is as fast as the kernel again. */
  shape(limits?: Limits): Promise<void>;
};

/** Needs `netem`, which not every kernel has. */
export type Limits = { readonly delayMs: number; readonly mbits: number };

function shaper({ delayMs, mbits }: Limits): string[] {
  // As many packets as are under way, and as many again, so that nothing is dropped for want of room.
  const packets = Math.ceil((mbits * 1e6 * delayMs * 4) / 1000 / 8 / 1500) + 1000;
  return ["netem", "delay", `${delayMs}ms`, "rate", `${mbits}mbit`, "limit", String(packets)];
}

/** Rejects with the reason where none can be made. */
export async function openNamespace(): Promise<Namespace> {
  const id = process.pid % 65_536;
  const [name, cable, subnet] = [`treadle-b${id}`, `trdb${id}`, `10.${220 + (id >> 14)}.${(id >> 6) & 255}`];
  const first = (id & 63) * 4;
  const [here, there] = [`${subnet}.${first + 1}`, `${subnet}.${first + 2}`];
  const dispose = async () => {
    await command("ip", "netns", "delete", name).catch(() => {});
    await command("ip", "link", "delete", cable).catch(() => {}); // went with the namespace
  };
  try {
    await command("ip", "netns", "add", name);
    await command("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name);
    await command("ip", "address", "add", `${here}/30`, "dev", cable);
    // As large packets as on loopback, else the kernel's work for each is all that is measured.
    await command("ip", "link", "set", cable, "mtu", "65535", "up");
    await command("ip", "-n", name, "address", "add", `${there}/30`, "dev", "eth0");
    await command("ip", "-n", name, "link", "set", "eth0", "mtu", "65535", "up");
    await command("ip", "-n", name, "link", "set", "lo", "up");
  } catch (error) {
    await dispose();
    throw new Error(`no network namespace can be made (root and iproute2 are needed): ${(error as Error).message}`);
  }
  return {
    here,
    there,
    inside: ["ip", "netns", "exec", name],
    async shape(limits) {
      for (const end of [
        ["dev", cable],
        ["dev", "eth0"],
      ] as const) {
        const where = end[1] === cable ? [] : ["-n", name];
        await command("tc", ...where, "qdisc", "del", ...end, "root").catch(() => {}); // was not shaped
        if (limits === undefined) continue;
        await command("tc", ...where, "qdisc", "add", ...end, "root", ...shaper(limits));
      }
    },
    [Symbol.asyncDispose]: dispose,
  };
}
