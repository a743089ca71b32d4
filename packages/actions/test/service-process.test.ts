import { execFile, execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createConnection, createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import * as grpc from "@grpc/grpc-js";
import { afterEach, describe, expect, test } from "vitest";
import { cgroupDriverLacks } from "../src/index.ts";
import { StatisticsClient } from "../src/serve.ts";
import { connectActions } from "./support/client.ts";
import { startService, treadle } from "./support/service-process.ts";

const run = promisify(execFile);

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** Files of a test, with the configuration as one of them. */
function folderOf(files: Record<string, string>): string {
  const folder = mkdtempSync(join(tmpdir(), "treadle-service-"));
  cleanups.push(() => rmSync(folder, { recursive: true }));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
  return join(folder, "config.yaml");
}

const serve = async (config: string) => {
  const service = await startService(config);
  cleanups.push(service.kill);
  return service;
};

const connect = (address: string, token?: string) => {
  const client = connectActions(address, undefined, token);
  cleanups.push(client.close);
  return client;
};

const minimal = "listen: 127.0.0.1:0\ndrivers: [process]\nresources: { cpu: { type: cpu, numa: [[0]] } }\n";

describe("the action service as a process", () => {
  // The command line keeps what it writes to itself, by its umask.
  test.skipIf(cgroupDriverLacks() !== undefined)(
    "the sandboxes that it offers by default can be entered, and their files are as a user expects",
    async () => {
      const service = await serve(folderOf({ "config.yaml": minimal.replace("process", "cgroup") }));
      const { call, submit } = connect(service.address);
      const { trajectory } = await call("OpenTrajectory", {});
      const look = submit({ trajectory, command: ["sh", "-c", "id -un; umask; touch file; stat -c %a file ."] });
      expect(await look.ended).toBeUndefined();
      const printed = look.events.flatMap(({ output }) => (output === undefined ? [] : [output.stdout]));
      expect(Buffer.concat(printed).toString()).toBe("sandbox\n0022\n644\n755\n");
    },
  );

  test("SIGTERM lets what runs come to its end, refuses what is new, and leaves no process", async () => {
    const service = await serve(folderOf({ "config.yaml": `${minimal}drainSeconds: 50\n` }));
    const { call, submit } = connect(service.address);
    const { trajectory } = await call("OpenTrajectory", {});
    const going = submit({
      trajectory,
      command: ["sh", "-c", "touch here; while [ ! -e enough ]; do sleep 0.05; done"],
    });
    await going.until("started");
    const waiting = submit({ trajectory, command: ["true"] });
    await waiting.until("queued");
    service.child.kill("SIGTERM");
    while (!service.output().includes("takes nothing new")) await new Promise((resolve) => setTimeout(resolve, 20));
    await expect(call("OpenTrajectory", {})).rejects.toMatchObject({ code: grpc.status.UNAVAILABLE });
    expect(await submit({ trajectory, command: ["true"] }).ended).toMatchObject({ code: grpc.status.UNAVAILABLE });
    await call("WriteFile", { trajectory, path: "enough", data: Buffer.from("") });
    expect(await going.ended).toBeUndefined();
    expect(await waiting.ended).toBeUndefined();
    expect(waiting.events.at(-1)?.finished).toMatchObject({ status: "exited", exit_code: 0 });
    expect(await service.ended).toBe(0);
    expect(service.output()).toContain("nothing is left");
  });

  const preface = Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  test.each([
    { at: "127.0.0.1:0", says: "nothing", words: [] },
    { at: "127.0.0.1:0", says: "how it begins", words: [preface, Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0])] },
    { at: "unix", says: "nothing", words: [] },
    { at: "unix", says: "how it begins", words: [preface, Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0])] },
  ])("a client at '$at' that says $says and hangs does not keep the service from its end", async ({ at, words }) => {
    const config = folderOf({});
    const socket = `${config}.sock`;
    writeFileSync(config, minimal.replace("127.0.0.1:0", at === "unix" ? `unix:${socket}` : at));
    const service = await serve(config);
    const hung =
      at === "unix" ? createConnection(socket) : createConnection(Number(service.address.split(":")[1]), "127.0.0.1");
    hung.on("error", () => {}).pause();
    cleanups.push(() => hung.destroy());
    for (const word of words) hung.write(word);
    await connect(service.address).call("OpenTrajectory", {});
    service.child.kill("SIGTERM");
    expect(await service.ended).toBe(0);
  });

  test("a socket that a killed service left is taken; one at which somebody listens, or what is no socket, is not", async () => {
    const config = folderOf({});
    const listen = `unix:${config}.sock`;
    writeFileSync(config, minimal.replace("127.0.0.1:0", listen));
    const killed = await serve(config);
    await killed.kill();
    const service = await serve(config);
    await connect(service.address).call("OpenTrajectory", {});
    await expect(startService(config)).rejects.toThrow(/EADDRINUSE[\s\S]*give a path/);
    const file = folderOf({ taken: "kept" });
    writeFileSync(config, minimal.replace("127.0.0.1:0", `unix:${join(dirname(file), "taken")}`));
    await expect(startService(config)).rejects.toThrow(/EADDRINUSE/);
  });

  test("what outlives the time to drain is cancelled, with all it started", async () => {
    const service = await serve(folderOf({ "config.yaml": `${minimal}drainSeconds: 0.2\n` }));
    const { call, submit } = connect(service.address);
    const { trajectory } = await call("OpenTrajectory", {});
    const endless = submit({ trajectory, command: ["sh", "-c", "sleep 74.25 & sleep 74.25"] });
    await endless.until("started");
    service.child.kill("SIGTERM");
    expect(await endless.ended).toMatchObject({ code: grpc.status.CANCELLED });
    expect(await service.ended).toBe(0);
    expect(service.output()).toContain("cancels 1 that have not ended");
    expect(execFileSync("ps", ["-eo", "args"]).toString()).not.toMatch(/^sleep 74\.25/m);
  });

  test("a tenant keeps to its limits and sees its own actions, and 'top' shows them", async () => {
    const config = folderOf({
      "config.yaml": `${minimal}tenants: { a: { share: 2, tokenFile: a.token }, b: { tokenFile: b.token } }
limits: { trajectories: 1, actions: 2, maxTrajectoryMemoryMib: 600 }\n`,
      "a.token": "first-secret\n",
      "b.token": "second-secret\n",
    });
    const service = await serve(config);
    const [a, b] = [connect(service.address, "first-secret"), connect(service.address, "second-secret")];
    await expect(a.call("OpenTrajectory", { memory_bytes: 601 * 2 ** 20 })).rejects.toMatchObject({
      code: grpc.status.INVALID_ARGUMENT,
      details: expect.stringContaining("a trajectory may have 629145600"),
    });
    const { trajectory } = await a.call("OpenTrajectory", {});
    await expect(a.call("OpenTrajectory", {})).rejects.toMatchObject({ code: grpc.status.RESOURCE_EXHAUSTED });
    await b.call("OpenTrajectory", {});
    const first = a.submit({ trajectory, command: ["sleep", "73.75"], action: "first" });
    await first.until("started");
    await a.submit({ trajectory, command: ["true"] }).until("queued");
    expect(await a.submit({ trajectory, command: ["true"] }).ended).toMatchObject({
      code: grpc.status.RESOURCE_EXHAUSTED,
      details: expect.stringContaining("raise limits.actions"),
    });
    const seenBy = async (token: string) => {
      const client = new StatisticsClient({ address: service.address, token });
      cleanups.push(() => client.close());
      return client.read();
    };
    expect((await seenBy("first-secret")).tenants).toEqual({ a: { waiting: 1, running: 1 } });
    expect(await seenBy("second-secret")).toMatchObject({
      tenants: {},
      started: [],
      resources: { cpu: { units: 1, held: 1 } },
    });
    const top = ["actions", "top", service.address, "--count", "1", "--token-file", join(config, "../a.token")];
    const plain = await run(process.execPath, [treadle, ...top]);
    expect(plain.stdout).toContain("1 running, 1 waiting (a 1+1), 1 trajectory open");
    expect(plain.stdout).toContain("cpu: 1 of 1 held");
    const { stdout } = await run(process.execPath, [treadle, ...top, "--json"]);
    expect(JSON.parse(stdout).started[0]).toMatchObject({
      action: "a/first",
      why: "its cost is fixed; unit-aware started 1 of 1 candidates, 1 waiting, 1 cpu free",
    });
    expect(plain.stdout).toMatch(/1 cpu after .* its cost is fixed; unit-aware started 1 of 1 candidates/);
    expect(await a.call("Cancel", { action: "first" })).toEqual({ found: true });
    service.child.kill("SIGTERM");
    expect(await service.ended).toBe(0);
  });

  test("'top' says so when nobody serves there", async () => {
    const failed = await run(process.execPath, [treadle, "actions", "top", "127.0.0.1:1"]).catch(
      (error: { code: number; stderr: string }) => error,
    );
    expect(failed).toMatchObject({ code: 1 });
    expect(failed.stderr.replace(/\s+/g, " ")).toContain("no actions service answers at '127.0.0.1:1'");
    expect(failed.stderr).not.toContain("    at ");
  });

  test.each([
    ["listen: 0.0.0.0:0\n", "listen: other machines reach this address: give tls and every tenant a tokenFile"],
    ["resources: { cpu: { type: cpu, cores: 4 } }\n", "cores"],
    [
      "resources: { cpu: { type: cpu, numa: [[4096]] } }\ndrivers: [process]\n",
      "core '4096' is none of this machine's",
    ],
    ["resources: { search: { type: quota } }\n", "a quota gives concurrency, windows, or both"],
    ["policy: best\n", "policy"],
    ["drivers: [process]\nlisten: unix:/nowhere/at/all\n", "nothing can listen at 'unix:/nowhere/at/all'"],
    ["tenants: { a: { tokenFile: none.token } }\ndrivers: [process]\n", "'none.token' cannot be read"],
  ])("a configuration is refused with its key and the remedy: %s", async (text, message) => {
    const failed = await run(process.execPath, [treadle, "actions", "serve", folderOf({ "config.yaml": text })]).catch(
      (error: { code: number; stderr: string }) => error,
    );
    expect(failed).toMatchObject({ code: 2 });
    expect(failed.stderr.replace(/\s+/g, " ")).toContain(message);
    expect(failed.stderr).not.toContain("    at ");
  });
});

test("a second signal ends a service that something keeps from opening", async () => {
  const folder = mkdtempSync(join(tmpdir(), "treadle-mute-"));
  cleanups.push(() => rmSync(folder, { recursive: true }));
  /** An engine that never answers. */
  const engine = createServer((socket) => void socket.on("error", () => {}).resume());
  cleanups.push(() => engine.close());
  const isAsked = new Promise((resolve) => engine.once("connection", resolve));
  await new Promise<void>((resolve) => engine.listen(join(folder, "socket"), resolve));
  const config = join(folder, "config.yaml");
  writeFileSync(config, `drivers: [docker]\ndocker: { image: any, socket: "unix://${folder}/socket" }\n`);
  const child = spawn(process.execPath, [treadle, "actions", "serve", config], { stdio: "ignore" });
  cleanups.push(() => child.kill("SIGKILL"));
  const ended = new Promise((resolve) => child.once("close", resolve));
  await isAsked;
  child.kill("SIGTERM");
  await new Promise((resolve) => setTimeout(resolve, 200)); // signals that come together are one
  child.kill("SIGTERM");
  const late = new Promise((resolve) => setTimeout(resolve, 8000, "still there"));
  expect(await Promise.race([ended, late])).toBe(130);
});
