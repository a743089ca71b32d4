/** A network namespace joined to this one by a cable that a test can pull; needs root and iproute2. */
import { execFile, execFileSync } from "node:child_process";
import { promisify } from "node:util";

const run = promisify(execFile);
const ip = (...args: string[]) => run("ip", args, { timeout: 10_000 });

export const canUnplug = ((): boolean => {
  const name = `treadle-p${process.pid}`;
  try {
    execFileSync("ip", ["netns", "add", name], { stdio: "ignore" });
    execFileSync("ip", ["netns", "delete", name], { stdio: "ignore" });
    return true;
  } catch {
    return false;
  }
})();

export type UnpluggableNetwork = AsyncDisposable & {
  /** addresses on either side */
  readonly host: string;
  readonly guest: string;
  /** runs a command on the other side */
  readonly inside: readonly string[];
  unplug(): Promise<void>;
  plug(): Promise<void>;
};

export async function unpluggableNetwork(): Promise<UnpluggableNetwork> {
  const id = process.pid % 65_536;
  const [name, cable] = [`treadle-${id}`, `trdl${id}`];
  const subnet = `10.${200 + (id >> 14)}.${(id >> 6) & 255}`;
  const first = (id & 63) * 4;
  const [host, guest] = [`${subnet}.${first + 1}`, `${subnet}.${first + 2}`];
  await ip("netns", "add", name);
  await ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name);
  await ip("address", "add", `${host}/30`, "dev", cable);
  await ip("link", "set", cable, "up");
  for (const args of [
    ["address", "add", `${guest}/30`, "dev", "eth0"],
    ["link", "set", "eth0", "up"],
  ]) {
    await ip("-n", name, ...args);
  }
  await ip("-n", name, "link", "set", "lo", "up");
  return {
    host,
    guest,
    inside: ["ip", "netns", "exec", name],
    // The other side goes down: addresses on this one stay, and packets vanish as on a cut cable.
    unplug: async () => void (await ip("-n", name, "link", "set", "eth0", "down")),
    plug: async () => void (await ip("-n", name, "link", "set", "eth0", "up")),
    [Symbol.asyncDispose]: async () => {
      await ip("netns", "delete", name).catch(() => {});
      await ip("link", "delete", cable).catch(() => {}); // went with the namespace
    },
  };
}
