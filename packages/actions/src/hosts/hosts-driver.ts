/**
 * Sandboxes on many machines, each of which runs `treadle actions host`.
 *
 * Owned here: the connections to the hosts, and which of them has which sandbox.
 */
import { randomUUID } from "node:crypto";
import { TreadleError } from "@treadle/contracts";
import type { z } from "zod";
import type { Sandbox, SandboxDriver, SandboxOptions } from "../drivers/sandbox.ts";
import { endInTurn } from "../end-in-turn.ts";
import type { CpuNode } from "../managers/cpu.ts";
import { type Attached, type Attachment, HostConnection, type HostOptions } from "./host-connection.ts";
import { Done, type HostBeat, networkMessage, OpenReply } from "./host-messages.ts";
import { RemoteSandbox, RemoteSnapshot } from "./remote-sandbox.ts";

export type HostsListener = {
  readonly joined: (node: z.infer<typeof CpuNode>) => void;
  readonly left: (node: string, why: string) => void;
};

export class HostsDriver implements SandboxDriver {
  readonly name = "hosts";
  readonly #service = randomUUID();
  readonly #hosts: ReadonlyMap<string, HostConnection>;
  readonly #sandboxes = new Set<RemoteSandbox>();
  readonly #known = new Map<string, Attached>();

  constructor(hosts: Readonly<Record<string, HostOptions>>) {
    this.#hosts = new Map(Object.entries(hosts).map(([name, options]) => [name, new HostConnection(name, options)]));
  }

  /** Attaches to all of them, from now on whenever they are there. */
  keep({ joined, left }: HostsListener): void {
    for (const [name, host] of this.#hosts)
      host.keep(this.#service, {
        attached: (is) => {
          this.#known.set(name, is);
          joined({ id: name, ...is.shape });
        },
        lost: (why) => left(name, why),
      });
  }

  get isolation(): string {
    const each = [...this.#hosts.keys()].flatMap((name) => {
      const known = this.#known.get(name);
      return known === undefined ? [] : [{ name, what: `'${known.driver}', ${known.isolation}` }];
    });
    const kinds = [...new Set(each.map(({ what }) => what))];
    const namesOf = (what: string) => each.filter((one) => one.what === what).map(({ name }) => `'${name}'`);
    return kinds.map((what) => `on ${namesOf(what).join(", ")}: ${what}`).join("; ");
  }

  diskLacks(node?: string): string | undefined {
    return this.#known.get(this.#hostOf(node).name)?.diskLacks;
  }

  /** By host that is attached: what it said last, and its memory. */
  memory(): ReadonlyMap<string, { readonly beat: HostBeat; readonly memoryBytes: number }> {
    const said = [...this.#hosts].flatMap(([name, { attachment }]) => {
      const beat = attachment?.beat;
      return beat === undefined ? [] : [[name, { beat, memoryBytes: attachment!.is.shape.memoryBytes }] as const];
    });
    return new Map(said);
  }

  /** By host that is away: why. */
  away(): ReadonlyMap<string, string> {
    const away = [...this.#hosts.values()].filter(({ attachment }) => attachment === undefined);
    return new Map(away.map((host) => [host.name, `'${host.address}': ${host.why}`]));
  }

  /** Whether a host that is away may still come, though nobody mends anything. */
  get isAwaited(): boolean {
    return [...this.#hosts.values()].some(({ attachment, refuses }) => attachment === undefined && !refuses);
  }

  async open(options: SandboxOptions = {}, signal?: AbortSignal): Promise<Sandbox> {
    const { from, container, memoryBytes, maxProcesses, network, diskBytes } = options;
    if (from !== undefined && !(from instanceof RemoteSnapshot))
      throw new TreadleError(
        "action.invalid",
        "the snapshot is of another driver; take one of a sandbox of these hosts",
      );
    const host = from?.host ?? this.#hostOf(options.node);
    const { attachment } = host;
    if (from?.loss !== undefined)
      throw new TreadleError("sandbox.lost", `the snapshot is gone: ${from.loss}; take another`);
    if (attachment === undefined) throw new TreadleError("sandbox.failed", `host '${host.name}' is away: ${host.why}`);
    const id = randomUUID();
    const request = {
      sandbox: id,
      memory_bytes: memoryBytes,
      max_processes: maxProcesses,
      network: networkMessage(network),
      disk_bytes: diskBytes,
      image: container?.image,
      user: container?.user,
      working_folder: container?.workingFolder,
      snapshot: from?.id,
    };
    const opening = host.ask(attachment, "OpenSandbox", request, OpenReply, { signal });
    const { stateFolder } = await opening.catch(async (error: unknown) => {
      // Nothing is left of what was begun.
      await closeOn(host, attachment, id);
      throw error;
    });
    const sandbox = new RemoteSandbox(id, stateFolder, host, attachment, () => this.#sandboxes.delete(sandbox));
    this.#sandboxes.add(sandbox);
    return sandbox;
  }

  async close(): Promise<void> {
    await endInTurn(
      () => [...this.#sandboxes].map((sandbox) => sandbox.close()),
      () => [...this.#hosts.values()].map((host) => host.close()),
    );
  }

  #hostOf(node: string | undefined): HostConnection {
    const [only] = this.#hosts.values();
    const host = node === undefined && this.#hosts.size === 1 ? only : this.#hosts.get(node ?? "");
    if (host !== undefined) return host;
    throw new TreadleError(
      "sandbox.failed",
      node === undefined ? "no host was named" : `host '${node}' is none of this service's`,
    );
  }
}

const closeOn = (host: HostConnection, under: Attachment, sandbox: string): Promise<void> =>
  host.ask(under, "CloseSandbox", { sandbox }, Done).then(
    () => {},
    () => {},
  );
