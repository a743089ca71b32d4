/** Sandboxes on other machines: hosts in processes and in this one, their deaths, and who may call them. */
import { rmSync } from "node:fs";
import { type AddressInfo, createConnection, createServer, type Socket } from "node:net";
import * as grpc from "@grpc/grpc-js";
import { expect, onTestFinished, test } from "vitest";
import { hostDefinition } from "../src/grpc/service-definition.ts";
import { hostProtocol } from "../src/hosts/host-messages.ts";
import { serveHost } from "../src/hosts/host-server.ts";
import { HostsDriver } from "../src/hosts/hosts-driver.ts";
import { CgroupDriver, cgroupDriverLacks, describeHost, ProcessDriver, type SandboxDriver } from "../src/index.ts";
import { describeDriver } from "./support/driver-contract.ts";
import { eventually, processesWith } from "./support/processes.ts";

const shape = (({ numa, memoryBytes }) => ({ numa, memoryBytes }))(describeHost());

/** As if it were on another machine. */
function remoteOf(driver: SandboxDriver): SandboxDriver {
  const serving = serveHost({ address: "127.0.0.1:0", driver, shape });
  const attached = serving.then(async ({ port }) => {
    const hosts = new HostsDriver({ a: { address: `127.0.0.1:${port}` } });
    await new Promise<void>((resolve) => hosts.keep({ joined: () => resolve(), left: () => {} }));
    return hosts;
  });
  return {
    name: "hosts",
    isolation: driver.isolation,
    open: async (options, signal) => (await attached).open(options, signal),
    close: async () => {
      await (await attached).close();
      await (await serving).close();
    },
  };
}

describeDriver("a process driver's on another host", () => remoteOf(new ProcessDriver()), undefined, 160);
describeDriver("a cgroup driver's on another host", () => remoteOf(new CgroupDriver()), cgroupDriverLacks(), 170);

/** A host and a driver of it, as a service has one. */
async function hostAndDriver(options: { silenceMs?: number } = {}, driver: SandboxDriver = new ProcessDriver()) {
  const server = await serveHost({ address: "127.0.0.1:0", driver, shape });
  const hosts = new HostsDriver({ a: { address: `127.0.0.1:${server.port}`, ...options } });
  const said: string[] = [];
  hosts.keep({ joined: ({ id }) => said.push(`joined ${id}`), left: (id, why) => said.push(`left ${id}: ${why}`) });
  onTestFinished(async () => {
    await hosts.close();
    await server.close();
  });
  const until = async (what: string): Promise<void> => {
    expect(await eventually(() => said.some((line) => line.startsWith(what)))).toBe(true);
    said.splice(0);
  };
  await until("joined a");
  return { server, hosts, said, until };
}

/** A connection to a host that speaks as it likes. */
function rawClient(port: number) {
  const Client = grpc.makeClientConstructor(hostDefinition(), "SandboxHost");
  const client = new Client(`127.0.0.1:${port}`, grpc.credentials.createInsecure());
  onTestFinished(() => client.close());
  const attach = (request: object) => {
    const call = (
      client["Attach"] as (r: object) => grpc.ClientReadableStream<{ attached?: { attachment: string } }>
    ).call(client, request);
    call.on("error", () => {});
    const attached = new Promise<string>((resolve, reject) => {
      call.on("data", ({ attached: is }) => is && resolve(is.attachment));
      call.on("error", (error: grpc.ServiceError) => reject(error));
    });
    return { call, attached };
  };
  const ask = (method: string, request: object): Promise<unknown> =>
    new Promise((resolve, reject) => {
      type Method = (r: object, done: (error: Error | null, reply: unknown) => void) => void;
      (client[method] as Method).call(client, request, (error, reply) => (error ? reject(error) : resolve(reply)));
    });
  return { attach, ask };
}

test("RH1 RH2 RH3 the same service takes its own place, another waits, and what an attachment left is gone before the next", async () => {
  const driver = new ProcessDriver();
  const server = await serveHost({ address: "127.0.0.1:0", driver, shape });
  onTestFinished(() => server.close());
  const { attach, ask } = rawClient(server.port);
  const first = attach({ protocol: hostProtocol, service: "one" });
  const old = await first.attached;
  await ask("OpenSandbox", { attachment: old, sandbox: "s" });
  await expect(ask("OpenSandbox", { attachment: old, sandbox: "s" })).rejects.toThrow(/sandbox 's' is open already/);
  await expect(attach({ protocol: hostProtocol, service: "two" }).attached).rejects.toThrow(
    /another action service is attached/,
  );
  await expect(attach({ protocol: 99, service: "one" }).attached).rejects.toThrow(
    /the service speaks protocol '99', this host 1; install the same version of Treadle on both/,
  );
  const again = await attach({ protocol: hostProtocol, service: "one" }).attached;
  for (const [method, request] of [
    ["OpenSandbox", { sandbox: "t" }],
    ["WriteFile", { sandbox: "s", path: "f", data: Buffer.from("x") }],
    ["CloseSandbox", { sandbox: "s" }],
  ] as const)
    await expect(ask(method, { attachment: old, ...request })).rejects.toThrow(/this attachment is over/);
  await expect(ask("ReadFile", { attachment: again, sandbox: "s", path: "f" })).rejects.toThrow(
    /sandbox 's' is not open/,
  );
  await expect(ask("OpenSandbox", { attachment: again, sandbox: "n", network: true })).rejects.toThrow(
    /this host gives sandboxes no network; leave it out, or set network: host in the host's configuration/,
  );
  await expect(ask("OpenSandbox", { attachment: again, sandbox: "f", snapshot: "none" })).rejects.toThrow(
    /not on this host/,
  );
  first.call.cancel();
  await ask("OpenSandbox", { attachment: again, sandbox: "later" });
});

test("AH1 AH2 a host that falls silent is lost, with all that was on it, and is used again when it speaks", async () => {
  const driver = new ProcessDriver();
  const server = await serveHost({ address: "127.0.0.1:0", driver, shape });
  // Between them: what hangs says nothing, and closes nothing.
  let hangs = false;
  const sockets = new Set<Socket>();
  const between = createServer((near) => {
    const far = createConnection(server.port, "127.0.0.1");
    for (const [from, to] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(from);
      from.on("error", () => {});
      from.on("data", (bytes) => hangs || to.write(bytes));
      from.on("close", () => to.destroy());
    }
  });
  await new Promise<void>((resolve) => between.listen(0, "127.0.0.1", resolve));
  onTestFinished(async () => {
    for (const socket of sockets) socket.destroy();
    between.close();
    await server.close();
  });
  const said: string[] = [];
  const { port } = between.address() as AddressInfo;
  const hosts = new HostsDriver({ a: { address: `127.0.0.1:${port}`, silenceMs: 2000 } });
  onTestFinished(() => hosts.close());
  hosts.keep({ joined: () => said.push("joined"), left: (_, why) => said.push(why) });
  expect(await eventually(() => said.includes("joined"))).toBe(true);
  const sandbox = await hosts.open({ node: "a" });
  const snapshot = await sandbox.snapshot({ maxBytes: 2 ** 20 });
  const running = sandbox.exec({ command: ["sleep", "213.25"] });
  expect(await eventually(() => processesWith("213.25").length > 0)).toBe(true);
  hangs = true;
  await expect(running).rejects.toMatchObject({
    code: "sandbox.failed",
    message: expect.stringMatching(/it has said nothing for 2 s/),
  });
  expect(sandbox.loss).toMatch(/^host 'a' at '.*' was lost: it has said nothing for 2 s$/);
  await expect(hosts.open({ node: "a" })).rejects.toMatchObject({ code: "sandbox.failed" });
  for (const socket of sockets) socket.destroy();
  hangs = false;
  expect(await eventually(() => said.filter((line) => line === "joined").length === 2)).toBe(true);
  expect(processesWith("213.25")).toEqual([]); // before it was attached again (RH2)
  await expect(sandbox.exec({ command: ["true"] })).rejects.toThrow(/has died: host 'a'/);
  await expect(hosts.open({ from: snapshot })).rejects.toMatchObject({ code: "sandbox.lost" });
  await snapshot.drop();
  await sandbox.close();
  const other = await hosts.open({ node: "a" });
  expect((await other.exec({ command: ["echo", "again"] })).stdout.toString()).toBe("again\n");
});

test("a sandbox that dies on its host is told as lost; one that was given up while it was opened is closed there", async () => {
  const open = new Set<string>();
  const inner = new ProcessDriver();
  const slow: SandboxDriver = {
    name: "slow",
    isolation: "none",
    open: async (options, signal) => {
      const sandbox = await inner.open(options, signal);
      open.add(sandbox.id);
      await new Promise((resolve) => setTimeout(resolve, 300));
      const close = sandbox.close.bind(sandbox);
      sandbox.close = async () => {
        await close();
        open.delete(sandbox.id);
      };
      return sandbox;
    },
    close: () => inner.close(),
  };
  const { hosts } = await hostAndDriver({}, slow);
  const sandbox = await hosts.open();
  await sandbox.writeFile("kept", "x");
  const { stdout } = await sandbox.exec({ command: ["pwd"] });
  rmSync(stdout.toString().trim(), { recursive: true });
  await expect(sandbox.exec({ command: ["true"] })).rejects.toMatchObject({ code: "sandbox.failed" });
  expect(sandbox.loss).toBe("its folder was removed");
  await sandbox.close();
  const abort = new AbortController();
  const opening = hosts.open({}, abort.signal);
  expect(await eventually(() => open.size === 1)).toBe(true);
  abort.abort(new Error("nobody waits"));
  await expect(opening).rejects.toThrow("nobody waits");
  expect(await eventually(() => open.size === 0)).toBe(true);
  await expect(hosts.open({ node: "nowhere" })).rejects.toThrow(/host 'nowhere' is none of this service's/);
});
