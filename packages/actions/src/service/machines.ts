/** Where the commands of a service run: on this machine, or on hosts, which come and go. */
import { totalmem } from "node:os";
import { setTimeout as delay } from "node:timers/promises";
import { TreadleError } from "@treadle/contracts";
import { openDriver } from "../drivers/open-driver.ts";
import type { SandboxDriver } from "../drivers/sandbox.ts";
import type { HostLoad } from "../grpc/statistics-reply.ts";
import type { HostOptions } from "../hosts/host-connection.ts";
import { HostsDriver } from "../hosts/hosts-driver.ts";
import type { CpuManager } from "../managers/cpu.ts";
import { networkOf } from "../network/sandbox-network.ts";
import { availableOfHost, type MemoryGuardOptions } from "../pool/memory-guard.ts";
import { type ConfigFiles, tokenIn } from "./config-files.ts";
import type { ActionServiceConfig } from "./service-config.ts";

export const thisMachine = "local";

const lookMs = 50;

export type Machines = {
  readonly driver: SandboxDriver;
  readonly memory: MemoryGuardOptions["memory"];
  /** by name, absent where it is this machine */
  readonly hosts: (() => Record<string, HostLoad>) | undefined;
  /** told when a host has come, or gone with `why` */
  onChange(listener: (host: string, why: string | undefined) => void): void;
};

/** Throws `sandbox.unavailable` where no driver, or no host, can be had. */
export async function openMachines(
  config: ActionServiceConfig,
  files: ConfigFiles,
  cpu: CpuManager | undefined,
): Promise<Machines> {
  const found = Object.entries(config.resources).flatMap(([key, resource]) =>
    resource.type === "cpu" && resource.hosts !== undefined ? [{ ...resource, name: key, hosts: resource.hosts }] : [],
  )[0];
  if (found === undefined || cpu === undefined) {
    const { trajectoryDiskMib } = config.limits;
    const diskBytes = trajectoryDiskMib === undefined ? undefined : trajectoryDiskMib * 2 ** 20;
    const driver = await openDriver(files.choice(config), { network: networkOf(config.network), diskBytes });
    const own = (): { availableBytes: number; reserveBytes: number } => ({
      availableBytes: availableOfHost(),
      reserveBytes: reserveOf(totalmem()),
    });
    return { driver, memory: () => new Map([[thisMachine, own()]]), hosts: undefined, onChange: () => {} };
  }
  const { name, hosts, hostWaitSeconds } = found;
  const options: Record<string, HostOptions> = {};
  for (const [host, { address, tokenFile, authority }] of Object.entries(hosts)) {
    const key = `resources.${name}.hosts.${host}`;
    options[host] = {
      address,
      token: tokenFile === undefined ? undefined : await tokenIn(files, tokenFile, `${key}.tokenFile`),
      authority: authority === undefined ? undefined : await files.read(authority, `${key}.authority`),
    };
  }
  const driver = new HostsDriver(options);
  const listeners: ((host: string, why: string | undefined) => void)[] = [];
  const tell = (host: string, why?: string): void => {
    for (const listener of listeners) listener(host, why);
  };
  driver.keep({
    joined: (node) => {
      cpu.join(node);
      tell(node.id);
    },
    left: (node, why) => {
      cpu.leave(node);
      tell(node, why);
    },
  });
  for (let waitedMs = 0; driver.isAwaited && waitedMs < hostWaitSeconds * 1000; waitedMs += lookMs) await delay(lookMs);
  const away = driver.away();
  if (away.size === Object.keys(hosts).length) {
    await driver.close();
    throw new TreadleError(
      "sandbox.unavailable",
      `resources.${name}.hosts: none answers: ${[...away].map(([host, why]) => `'${host}' at ${why}`).join("; ")}; start 'treadle actions host' on each, or mend what they say`,
    );
  }
  return {
    driver,
    memory: () => {
      const each = [...driver.memory()].map(([host, { beat, memoryBytes }]) => {
        const { availableBytes } = beat;
        return [host, { availableBytes, reserveBytes: reserveOf(memoryBytes), reading: beat }] as const;
      });
      return new Map(each);
    },
    hosts: () => {
      const loads = cpu.load();
      const away = driver.away();
      const none = { cores: 0, held: 0, memoryBytes: 0, reservedBytes: 0 };
      return Object.fromEntries(
        Object.keys(hosts).map((host) => [host, { ...(loads.get(host) ?? none), away: away.get(host) }]),
      );
    },
    onChange: (listener) => listeners.push(listener),
  };
}

const reserveOf = (totalBytes: number): number => Math.min(totalBytes * 0.05, 2 ** 30);
