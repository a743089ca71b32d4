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
import { collectGarbage } from "./support/garbage.ts";
import { eventually, processesWith } from "./support/processes.ts";

/** As many cores as the tests of drivers ask for. */
const shape = (({ memoryBytes, numa }) => ({ numa, memoryBytes }))(describeHost());

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
    diskLacks: () => driver.diskLacks(),
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
  const stream = (start: object) => {
    const call = (client["Exec"] as () => grpc.ClientDuplexStream<object, object>).call(client);
    call.on("error", () => {});
    call.write({ start });
    call.end();
    return call;
  };
  const exec = (start: object): Promise<void> =>
    new Promise((resolve, reject) => {
      const call = stream(start);
      call.on("data", () => {});
      call.on("error", reject);
      call.on("end", () => setImmediate(resolve));
    });
  return { attach, ask, stream, exec };
}

test("RH1 RH3 the same service takes its own place, another is refused, and calls of what is over change nothing", async () => {
  const driver = new ProcessDriver();
  const server = await serveHost({ address: "127.0.0.1:0", driver, shape });
  onTestFinished(() => server.close());
  const { attach, ask, exec } = rawClient(server.port);
  const first = attach({ protocol: hostProtocol, service: "one", host: "h" });
  const old = await first.attached;
  await ask("OpenSandbox", { attachment: old, sandbox: "s" });
  await ask("TakeSnapshot", { attachment: old, sandbox: "s", snapshot: "p", max_bytes: 2 ** 20 });
  for (const [method, request, why] of [
    ["OpenSandbox", { sandbox: "s" }, /sandbox 's' is open already/],
    ["TakeSnapshot", { sandbox: "s", snapshot: "p", max_bytes: 1 }, /snapshot 'p' is there already/],
    ["OpenSandbox", { sandbox: "n", network: {} }, /gives sandboxes no network; leave it out, or set network in/],
    ["OpenSandbox", { sandbox: "f", snapshot: "none" }, /the snapshot is not on this host/],
    ["OpenSandbox", { sandbox: "f", memory_bytes: Number.NaN }, /memory_bytes: /],
    ["OpenSandbox", { sandbox: "f", disk_bytes: -1 }, /disk_bytes: /],
    ["OpenSandbox", { sandbox: "f", disk_bytes: 2 ** 23 }, /'process' cannot hold a limit of '8388608' bytes on files/],
    ["OpenSandbox", { sandbox: "f", max_processes: 100_000 }, /max_processes: /],
    ["ReadFile", { sandbox: "other", path: "f" }, /sandbox 'other' is not open/],
  ] as const)
    await expect(ask(method, { attachment: old, ...request })).rejects.toThrow(why);
  await expect(attach({ protocol: hostProtocol, service: "two", host: "h" }).attached).rejects.toThrow(
    /another action service is/,
  );
  await expect(attach({ protocol: 99, service: "one", host: "h" }).attached).rejects.toThrow(
    /the service speaks protocol '99', this host 2; install the same version of Treadle on both/,
  );
  const again = await attach({ protocol: hostProtocol, service: "one", host: "h" }).attached;
  for (const [method, request] of [
    ["OpenSandbox", { sandbox: "t" }],
    ["WriteFile", { sandbox: "s", path: "f", data: Buffer.from("x") }],
    ["ReadFile", { sandbox: "s", path: "f" }],
    ["TakeSnapshot", { sandbox: "s", snapshot: "q", max_bytes: 1 }],
    ["DropSnapshot", { snapshot: "p" }],
    ["Signal", { exec: "e", signal: "" }],
    ["CloseSandbox", { sandbox: "s" }],
  ] as const)
    await expect(ask(method, { attachment: old, ...request })).rejects.toThrow(/this attachment is over/);
  const start = { exec: "e", command: ["true"] };
  await expect(exec({ ...start, attachment: old, sandbox: "s" })).rejects.toThrow(/this attachment is over/);
  await expect(exec({ ...start, attachment: again, sandbox: "s" })).rejects.toThrow(/sandbox 's' is not open/);
  await ask("OpenSandbox", { attachment: again, sandbox: "s" });
  await expect(exec({ ...start, attachment: again, sandbox: "s", cores: [4000] })).rejects.toThrow(
    /cores: '4000' are none of this host's, which are 0\b/,
  );
  await exec({ ...start, attachment: again, sandbox: "s" });
});

/** Its sandboxes take so long to close. */
function slowToClose(ms: number) {
  const inner = new ProcessDriver();
  const open = new Set<string>();
  const driver: SandboxDriver = {
    name: "slow",
    isolation: "none",
    diskLacks: () => undefined,
    open: async (options, signal) => {
      const sandbox = await inner.open(options, signal);
      open.add(sandbox.id);
      const close = sandbox.close.bind(sandbox);
      sandbox.close = async () => {
        await new Promise((resolve) => setTimeout(resolve, ms));
        await close();
        open.delete(sandbox.id);
      };
      return sandbox;
    },
    close: () => inner.close(),
  };
  return { driver, open };
}

test("RH2 nobody is attached before all is closed that the last one left", async () => {
  const { driver, open } = slowToClose(500);
  const server = await serveHost({ address: "127.0.0.1:0", driver, shape });
  onTestFinished(() => server.close());
  const { attach, ask } = rawClient(server.port);
  const first = attach({ protocol: hostProtocol, service: "one", host: "h" });
  await ask("OpenSandbox", { attachment: await first.attached, sandbox: "s" });
  expect(open.size).toBe(1);
  await attach({ protocol: hostProtocol, service: "one", host: "h" }).attached;
  expect(open.size).toBe(0);
});

test("RH2 a service that falls silent leaves nothing", async () => {
  const { server, port, hang } = await behindSilence({ keepaliveMs: 300 });
  const { attach, ask } = rawClient(port);
  const attachment = await attach({ protocol: hostProtocol, service: "one", host: "h" }).attached;
  await ask("OpenSandbox", { attachment, sandbox: "s" });
  hang(true);
  const other = rawClient(server.port);
  expect(
    await eventually(async () => {
      const attached = other.attach({ protocol: hostProtocol, service: "two", host: "h" }).attached;
      return attached.then(
        () => true,
        () => false,
      );
    }),
  ).toBe(true);
});

test("RH2 a host that ends tells its service first, so that nothing ends for another reason", async () => {
  const { server, hosts, until } = await hostAndDriver();
  const sandbox = await hosts.open();
  const running = sandbox.exec({ command: ["sleep", "214.25"] });
  expect(await eventually(() => processesWith("214.25").length > 0)).toBe(true);
  const closing = server.close();
  await expect(running).rejects.toMatchObject({
    code: "sandbox.failed",
    message: "host 'a' was lost: this host ends",
  });
  await until("left a: this host ends");
  await closing;
  expect(processesWith("214.25")).toEqual([]);
});

test("a command is cancelled however large it is, whenever", async () => {
  const { hosts } = await hostAndDriver();
  const sandbox = await hosts.open();
  for (const delayMs of [0, 1, 3, 10, 30]) {
    const abort = new AbortController();
    const command = ["sh", "-c", "sleep 216.25", ...Array.from({ length: 10 }, () => "x".repeat(110_000))] as const;
    const running = sandbox.exec({ command: [...command], signal: abort.signal });
    setTimeout(() => abort.abort(), delayMs);
    expect((await running).status).toBe("cancelled");
  }
  expect(processesWith("216.25")).toEqual([]);
});

test("a host that speaks nonsense costs its own commands, and the service nothing", async () => {
  const metadata = new grpc.Metadata();
  metadata.set("treadle-loss", "%E0%A4%A");
  const failed = { code: grpc.status.INTERNAL, details: "odd", metadata };
  const server = new grpc.Server();
  let flood = false;
  server.addService(hostDefinition(), {
    Attach: (call: grpc.ServerWritableStream<object, object>) => {
      call.write({
        attached: { attachment: "x", driver: "d", isolation: "i", numa: [{ cores: [0] }], memory_bytes: 1e9 },
      });
      call.write({ beat: { available_bytes: 1e9, used_bytes: { __proto__: 1 }, losses: {} } });
    },
    OpenSandbox: (_: unknown, done: grpc.sendUnaryData<object>) => done(null, { state_folder: "/tmp/s" }),
    CloseSandbox: (_: unknown, done: grpc.sendUnaryData<object>) => done(null, {}),
    WriteFile: (_: unknown, done: grpc.sendUnaryData<object>) => done(failed),
    Exec: (call: grpc.ServerDuplexStream<object, object>) => {
      if (!flood) return void call.emit("error", failed);
      const more = (): void => {
        while (!call.cancelled && call.write({ output: { stdout: Buffer.alloc(2 ** 16) } }));
      };
      call.on("drain", more);
      more();
    },
  });
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), (error, at) =>
      error ? reject(error) : resolve(at),
    ),
  );
  onTestFinished(() => server.forceShutdown());
  const hosts = new HostsDriver({ a: { address: `127.0.0.1:${port}` } });
  onTestFinished(() => hosts.close());
  await new Promise<void>((resolve) => hosts.keep({ joined: () => resolve(), left: () => {} }));
  const sandbox = await hosts.open();
  await expect(sandbox.writeFile("f", "x")).rejects.toMatchObject({ code: "sandbox.failed", message: "host 'a': odd" });
  expect(sandbox.loss).toBe("its host does not say why");
  const other = await hosts.open();
  flood = true;
  const kept: number[] = [];
  const flooded = other.exec({
    command: ["x"],
    maxOutputBytes: 2 ** 20,
    onOutput: (_, chunk) => kept.push(chunk.length),
  });
  await expect(flooded).rejects.toMatchObject({ code: "sandbox.failed" });
  expect(kept.reduce((sum, bytes) => sum + bytes, 0)).toBeLessThanOrEqual(2 ** 20);
});

/** By buffers and objects that are in use: what a process has of the system also says when garbage was last collected. */
function heldBytes(): number {
  collectGarbage();
  const { external, heapUsed } = process.memoryUsage();
  return external + heapUsed;
}

test("output that nobody takes is in files of the host, not in its memory", async () => {
  const server = await serveHost({ address: "127.0.0.1:0", driver: new ProcessDriver(), shape });
  onTestFinished(() => server.close());
  const { attach, ask, stream } = rawClient(server.port);
  const attachment = await attach({ protocol: hostProtocol, service: "one", host: "h" }).attached;
  await ask("OpenSandbox", { attachment, sandbox: "s" });
  const numBytes = 200 * 2 ** 20;
  const command = ["sh", "-c", `head -c ${numBytes} /dev/zero; touch done`];
  const call = stream({ attachment, sandbox: "s", exec: "e", command, max_output_bytes: 2 ** 40 });
  let taken = 0;
  call.on("data", ({ output }: { output?: { stdout: Buffer } }) => {
    taken += output?.stdout.length ?? 0;
  });
  // Until it is asked for the first, gRPC's client takes whatever comes.
  await new Promise((resolve) => call.once("data", resolve));
  call.pause();
  const before = heldBytes();
  const isDone = () =>
    ask("ReadFile", { attachment, sandbox: "s", path: "done" }).then(
      () => true,
      () => false,
    );
  expect(await eventually(isDone)).toBe(true);
  // What is on its way to the disk, or was collected and not yet swept, is let go of.
  expect(await eventually(() => heldBytes() - before < numBytes / 4)).toBe(true);
  call.resume();
  await new Promise((resolve) => call.on("end", resolve));
  expect(taken).toBe(numBytes);
});

/** A host, and what lies between it and its service: when it hangs, it says nothing, and closes nothing. */
async function behindSilence(options: { keepaliveMs?: number } = {}) {
  const server = await serveHost({ address: "127.0.0.1:0", driver: new ProcessDriver(), shape, ...options });
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
  const cut = (): void => {
    for (const socket of sockets) socket.destroy();
  };
  onTestFinished(async () => {
    cut();
    between.close();
    await server.close();
  });
  const hang = (does: boolean): void => {
    hangs = does;
  };
  return { server, port: (between.address() as AddressInfo).port, hang, cut };
}

test("AH1 AH2 a host that falls silent is lost, with all that was on it, and is used again when it speaks", async () => {
  const { port, hang, cut } = await behindSilence();
  const said: string[] = [];
  const hosts = new HostsDriver({ a: { address: `127.0.0.1:${port}`, silenceMs: 2000 } });
  onTestFinished(() => hosts.close());
  hosts.keep({ joined: () => said.push("joined"), left: (_, why) => said.push(why) });
  expect(await eventually(() => said.includes("joined"))).toBe(true);
  const sandbox = await hosts.open({ node: "a" });
  const snapshot = await sandbox.snapshot({ maxBytes: 2 ** 20 });
  const running = sandbox.exec({ command: ["sleep", "213.25"] });
  expect(await eventually(() => processesWith("213.25").length > 0)).toBe(true);
  hang(true);
  await expect(running).rejects.toMatchObject({
    code: "sandbox.failed",
    message: "host 'a' was lost: it has said nothing for 2 s",
  });
  expect(sandbox.loss).toBe("host 'a' was lost: it has said nothing for 2 s");
  expect(snapshot.loss).toBe(sandbox.loss);
  await expect(hosts.open({ node: "a" })).rejects.toMatchObject({ code: "sandbox.failed" });
  cut();
  hang(false);
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
    diskLacks: () => undefined,
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
