/** `treadle actions host`: the sandboxes of this machine, for an action service on another one. */
import { z } from "zod";
import { checkDriverChoice, driverChoice, openDriver } from "../drivers/open-driver.ts";
import { boundAddress } from "../grpc/listen.ts";
import { serveHost } from "../hosts/host-server.ts";
import { CpuNode } from "../managers/cpu.ts";
import { machineOf } from "../managers/host.ts";
import { Network, networkOf } from "../network/sandbox-network.ts";
import { filesIn, tokenIn } from "./config-files.ts";
import { isLocal } from "./service-config.ts";

export const ActionHostConfig = z
  .strictObject({
    /** host:port or unix:/path; port 0 for any that is free */
    listen: z.string().min(1).default("127.0.0.1:50071"),
    ...driverChoice,
    drivers: driverChoice.drivers.default(["cgroup"]),
    /** core numbers by NUMA node; this machine's when absent */
    numa: CpuNode.shape.numa.optional(),
    /** the most that services may ask for: `host`, the machine's own, or `{ proxy: [...] }`, what is on the list */
    network: Network,
    /** file with the secret that services send; none where its own user alone can reach it */
    tokenFile: z.string().min(1).optional(),
    /** encrypts connections; default: they are in the clear */
    tls: z
      .strictObject({
        /** file of its certificate, PEM */
        certificate: z.string().min(1),
        /** file of its private key, PEM */
        key: z.string().min(1),
      })
      .optional(),
    /** accepts other machines and other users of this one without TLS and a token, where nobody else is */
    insecure: z.boolean().default(false),
  })
  .superRefine((config, context) => {
    checkDriverChoice(config, context);
    const isOpen = config.tls === undefined || config.tokenFile === undefined;
    if (isOpen && !isLocal(config.listen) && !config.insecure)
      context.addIssue({
        code: "custom",
        path: ["listen"],
        message:
          "other machines reach this address: give tls and a tokenFile, or listen at 127.0.0.1, or set insecure: true",
      });
  });
export type ActionHostConfig = z.infer<typeof ActionHostConfig>;

export type ActionHost = {
  /** where services reach it */
  readonly address: string;
  readonly driver: string;
  readonly isolation: string;
  readonly numCores: number;
  /** what whoever started it should know of who can call */
  readonly warning: string | undefined;
  /** Leaves no call, sandbox or process. */
  close(): Promise<void>;
};

/** Files of the configuration are relative to `folder`. Throws `config.invalid` and `sandbox.unavailable`. */
export async function openActionHost(
  config: ActionHostConfig,
  folder: string,
  onChange: (line: string) => void,
): Promise<ActionHost> {
  const { listen, tls, tokenFile, numa, insecure, network } = config;
  const files = filesIn(folder);
  const token = tokenFile === undefined ? undefined : await tokenIn(files, tokenFile, "tokenFile");
  const certificates = await files.certificates(tls);
  const shape = machineOf(numa, "numa");
  const given = networkOf(network);
  const driver = await openDriver(files.choice(config), { network: given });
  const server = await serveHost({
    address: listen,
    tls: certificates,
    token,
    insecure,
    network: given ?? "none",
    driver,
    shape,
    onChange,
  }).catch(async (error: unknown) => {
    await driver.close();
    throw error;
  });
  return {
    address: boundAddress(listen, server.port),
    driver: driver.name,
    isolation: driver.isolation,
    numCores: shape.numa.flat().length,
    warning: server.warning,
    close: server.close,
  };
}
