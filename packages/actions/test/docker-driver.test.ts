import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { createServer as createHttpServer } from "node:http";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { availableParallelism } from "node:os";
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { DockerDriver, dockerDriverLacks } from "../src/docker.ts";
import { DockerEngine } from "../src/drivers/docker-engine.ts";
import type { Snapshot } from "../src/drivers/sandbox.ts";
import { ActionPool, CommandActions, CpuManager, describeHost, ProcessDriver, type Sandbox } from "../src/index.ts";
import { AllowList } from "../src/network/allow-list.ts";
import { ActionServiceConfig, openActionService } from "../src/serve.ts";
import { connectActions } from "./support/client.ts";
import { startDockerEngine, type TestEngine } from "./support/docker-engine.ts";
import { describeDriver } from "./support/driver-contract.ts";
import { describeForgeries } from "./support/forgery-contract.ts";
import { describeHeldShell } from "./support/held-shell-contract.ts";
import { eventually, processesWith } from "./support/processes.ts";
import { describeShortMemory } from "./support/short-memory-contract.ts";

// A real engine where one can be started; the reason, in the names of what is skipped, where not.
const started = await startDockerEngine();
const missing = typeof started === "string" ? started : undefined;
const engine = started as TestEngine;
afterAll(async () => {
  if (missing === undefined) await engine.close();
});
/** What all drivers are tried with goes beyond the limit on files for a moment, which is not looked at. */
const rarely = { diskLookMs: 600_000 };
const driverOf = (fastPath: boolean) =>
  new DockerDriver({ image: engine.image, socket: engine.socket, fastPath }, rarely);

describeDriver("docker", () => driverOf(true), missing, 160);
describeHeldShell("docker", () => driverOf(true), missing, 170);
describeDriver("docker (by the engine alone)", () => driverOf(false), missing, 260);
describeHeldShell("docker (by the engine alone)", () => driverOf(false), missing, 270);

describeShortMemory("docker", () => driverOf(true), missing);
describeShortMemory("docker (by the engine alone)", () => driverOf(false), missing);

describeForgeries("docker", () => driverOf(true), { isolates: true, missing });
describeForgeries("docker (by the engine alone)", () => driverOf(false), { isolates: true, missing, rounds: 1 });

describe.skipIf(missing !== undefined)(
  `what only the docker driver promises${missing === undefined ? "" : ` (skipped: ${missing})`}`,
  () => {
    let driver: DockerDriver;
    let sandbox: Sandbox;
    beforeAll(async () => {
      driver = driverOf(true);
      sandbox = await driver.open({ memoryBytes: 96 * 2 ** 20, maxProcesses: 40 });
    });
    afterAll(() => driver.close());
    const say = async (script: string) =>
      (await sandbox.exec({ command: ["sh", "-c", script] })).stdout.toString().trim();

    test("DK8 what runs in a container and is no command's ends before the next one, whoever lists processes", async () => {
      for (const fastPath of [true, false]) {
        const own = driverOf(fastPath);
        const opened = await own.open();
        const container = engine.docker.getContainer(opened.id);
        const started = await container.exec({ Cmd: ["sleep", "168.25"], User: "65534:65534" });
        await started.start({ Detach: true });
        expect(await eventually(() => processesWith("168.25").length > 0)).toBe(true);
        await opened.exec({ command: ["true"] });
        expect([fastPath, processesWith("168.25"), opened.loss]).toEqual([fastPath, [], undefined]);
        await own.close();
      }
    });

    test("DK6 a container whose files are beyond its limit ends with its cause; others go on", async () => {
      const { image, socket } = engine;
      const own = new DockerDriver({ image, socket }, { diskLookMs: 200 });
      const [greedy, modest] = [await own.open({ diskBytes: 2 ** 22 }), await own.open({ diskBytes: 2 ** 22 })];
      const fill = "for i in 1 2 3 4; do head -c 2m /dev/zero > /tmp/f$i; done; sleep 60";
      const { status } = await greedy.exec({ command: ["sh", "-c", fill] });
      expect([status, greedy.loss]).toEqual([
        expect.stringMatching(/killed|exited/),
        expect.stringMatching(/^its files take \d+ bytes, and may take 4194304$/),
      ]);
      await expect(greedy.exec({ command: ["true"] })).rejects.toThrow(/has died: its files take/);
      expect((await modest.exec({ command: ["echo", "goes on"] })).stdout.toString()).toBe("goes on\n");
      await own.close();
    });

    test("DK6 what counts is what is taken of the disk: small files and volumes of an image too, holes not", async () => {
      const made = await engine.docker.createContainer({
        Image: engine.image,
        Cmd: ["true"],
        HostConfig: { NetworkMode: "none" },
      });
      await made.commit({ repo: "treadle-test", tag: "volume", changes: "VOLUME /data" });
      await made.remove({ force: true });
      const own = new DockerDriver({ image: "treadle-test:volume", socket: engine.socket }, { diskLookMs: 100 });
      const ended = async (fill: string) => {
        const container = { user: "0:0" };
        const sandbox = await own.open({ diskBytes: 2 ** 22, container });
        const running = sandbox.exec({ command: ["sh", "-c", `${fill}; sleep 60`] });
        running.catch(() => {});
        return { sandbox, loses: () => eventually(() => sandbox.loss?.startsWith("its files take") === true) };
      };
      const small = await ended("i=0; while [ $i -lt 1500 ]; do echo x > /tmp/s$i; i=$((i+1)); done");
      const volume = await ended("for i in 1 2 3; do head -c 2m /dev/zero > /data/f$i; done");
      const sparse = await ended("for i in 1 2 3 4; do truncate -s 3M /tmp/f$i; done; echo done > /tmp/done");
      expect([await small.loses(), await volume.loses()]).toEqual([true, true]);
      await eventually(async () => (await sparse.sandbox.readFile("/tmp/done").catch(() => "")).length > 0);
      await new Promise((resolve) => setTimeout(resolve, 400));
      expect(sparse.sandbox.loss).toBeUndefined();
      await own.close();
    });

    test("DK6 files that came with a snapshot count, and those of the snapshot before it", async () => {
      const own = new DockerDriver({ image: engine.image, socket: engine.socket }, { diskLookMs: 200 });
      const [diskBytes, limits] = [2 ** 23, { maxBytes: 2 ** 26 }];
      const write = (sandbox: Sandbox, name: string) =>
        sandbox.exec({ command: ["sh", "-c", `head -c 3m /dev/zero > /tmp/${name}`] });
      const first = await own.open({ diskBytes });
      await write(first, "a");
      const one = await first.snapshot(limits);
      const second = await own.open({ from: one, diskBytes });
      await write(second, "b");
      await expect(second.snapshot({ maxBytes: 2 ** 22 })).rejects.toThrow(/more than the 4194304 bytes/);
      const two = await second.snapshot(limits);
      expect([one.bytes, two.bytes]).toEqual([expect.closeTo(3 * 2 ** 20, -5), expect.closeTo(6 * 2 ** 20, -5)]);
      await expect(own.open({ from: two, diskBytes: 2 ** 22 })).rejects.toMatchObject({
        code: "sandbox.failed",
        message: expect.stringMatching(
          /^a snapshot of '\d+' bytes does not fit in the '4194304' .*; give .* disk_bytes/,
        ),
      });
      const third = await own.open({ from: two, diskBytes });
      const filling = third.exec({ command: ["sh", "-c", "head -c 3m /dev/zero > /tmp/c; sleep 60"] });
      filling.catch(() => {});
      expect(await eventually(() => third.loss !== undefined)).toBe(true);
      const [, taken] = /^its files take (\d+) bytes, and may take 8388608$/.exec(third.loss!)!;
      expect(Number(taken)).toBeGreaterThan(diskBytes);
      expect([first.loss, second.loss]).toEqual([undefined, undefined]);
      await own.close();
    });

    test("EPX1 a container reaches what is on the list by its proxy, and nothing else", async () => {
      const site = createHttpServer((request, response) => response.end(`served ${request.url}`));
      await new Promise<void>((resolve) => site.listen(0, "127.0.0.1", () => resolve()));
      const { port } = site.address() as AddressInfo;
      const network = [new AllowList([`127.0.0.1:${port}`])];
      const own = new DockerDriver({ image: engine.image, socket: engine.socket });
      const reaching = await own.open({ network });
      const run = async (script: string) =>
        (await reaching.exec({ command: ["sh", "-c", `unset no_proxy; (${script}) 2>&1`] })).stdout.toString().trim();
      expect(await run(`wget -qO- http://127.0.0.1:${port}/file`)).toBe("served /file");
      expect(await run("wget -qO- http://127.0.0.1:1/file")).toMatch(
        /403 '127.0.0.1:1' is not allowed by this server's network.proxy/,
      );
      expect(await run(`nc -w 5 127.0.0.1 ${port} </dev/null 2>/dev/null && echo reached || echo refused`)).toBe(
        "refused",
      );
      expect(await run("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")).toBe("lo");
      const shell = reaching.holdShell();
      const { output } = await shell.ask({ program: `unset no_proxy; wget -qO- http://127.0.0.1:${port}/shell` });
      expect(output.toString()).toBe("served /shell");
      await own.close();
      site.close();
      await expect(driverOf(false).open({ network })).rejects.toThrow(
        /network: a proxy needs root, the engine on this machine, docker.fastPath, and no gVisor/,
      );
    });

    test("commands are nobody, without capabilities and without a network", async () => {
      expect(await say("id -u; grep -E '^(CapEff|NoNewPrivs)' /proc/self/status | tr -s '\\t' ' '")).toBe(
        "65534\nCapEff: 0000000000000000\nNoNewPrivs: 1",
      );
      expect(await say("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")).toBe("lo");
    });

    test("SN2 no image is left of a snapshot that was dropped, or whose driver has closed", async () => {
      const images = async () => (await engine.docker.listImages()).map(({ Id }) => Id).sort();
      const before = await images();
      const own = driverOf(true);
      const first = await own.open();
      const limits = { maxBytes: 2 ** 26 };
      const snapshots = [await first.snapshot(limits), await first.snapshot(limits)];
      const fork = await own.open({ from: snapshots[0], container: { image: engine.image } });
      expect((await fork.exec({ command: ["true"] })).exitCode).toBe(0);
      expect((await images()).length).toBeGreaterThan(before.length);
      await snapshots[1]!.drop();
      await own.close();
      expect(await images()).toEqual(before);
    });

    test("SN2 a snapshot of what began from another outlives that, and the other outlives it; of both nothing is left", async () => {
      const images = async () => (await engine.docker.listImages({ all: true })).map(({ Id }) => Id).sort();
      const before = await images();
      const own = driverOf(true);
      const limits = { maxBytes: 2 ** 26 };
      const grow = async (from: Snapshot | undefined, name: string) => {
        const sandbox = await own.open({ from });
        await sandbox.writeFile(`/tmp/${name}`, name);
        const snapshot = await sandbox.snapshot(limits);
        await sandbox.close();
        return snapshot;
      };
      const holds = async (from: Snapshot) => {
        const sandbox = await own.open({ from });
        const { stdout } = await sandbox.exec({ command: ["sh", "-c", "cd /tmp; ls ?"] });
        await sandbox.close();
        return stdout.toString().split("\n").join("");
      };
      const a = await grow(undefined, "a");
      const [b, c] = [await grow(a, "b"), await grow(a, "c")];
      const d = await grow(b, "d");
      await d.drop();
      expect([await holds(a), await holds(b)]).toEqual(["a", "ab"]);
      await a.drop();
      await b.drop();
      expect(await holds(c)).toBe("ac");
      await c.drop();
      expect(await images()).toEqual(before);
      // At once, in whatever order: the engine removes some together.
      let last: Snapshot | undefined;
      for (const name of ["e", "f", "g", "h"]) last = await grow(last, name);
      await own.close();
      expect(await images()).toEqual(before);
      // As a process leaves them that was killed.
      const { hostname } = await import("node:os");
      const Labels = { "treadle.session": "treadle-4194999-1-dead", "treadle.host": hostname() };
      let Image = engine.image;
      for (const tag of ["first", "second"]) {
        const made = await engine.docker.createContainer({ Image, Cmd: ["true"], Labels });
        await made.commit({ repo: "treadle-snapshot", tag });
        await made.remove({ force: true });
        Image = `treadle-snapshot:${tag}`;
      }
      expect((await images()).length).toBe(before.length + 2);
      const next = driverOf(true);
      await (await next.open()).close();
      expect(await images()).toEqual(before);
      await next.close();
    });

    test("DK1 a process that makes a session of its own ends with its command, and so does a fork bomb", async () => {
      await say("setsid sleep 166.25 >/dev/null 2>&1 & echo");
      expect(await eventually(() => processesWith("166.25").length === 0)).toBe(true);
      const bomb = await sandbox.exec({
        command: ["sh", "-c", "b() { b | b & }; b; sleep 165.25"],
        timeoutMs: 1000,
        graceMs: 0,
      });
      // Where its processes together need more memory than there is, a command ends of that, too.
      expect(["timeout", "exited", "out-of-memory"]).toContain(bomb.status);
      expect(await eventually(() => processesWith("165.25").length === 0)).toBe(true);
      expect(await say("echo alive")).toBe("alive");
    });

    test("a command above the memory is out of memory, and its sandbox lives on", async () => {
      const hungry = await sandbox.exec({ command: ["sh", "-c", "exec tail -c 400m /dev/zero"], timeoutMs: 60_000 });
      expect(hungry.status).toBe("out-of-memory");
      expect(await say("echo alive")).toBe("alive");
    });

    test.skipIf(availableParallelism() < 2)(
      "DK2 cores that the engine or somebody else took back are set again, and its record says what holds",
      async () => {
        const shell = sandbox.holdShell();
        const see = async () => (await shell.ask({ program: "nproc", cores: [1] })).output.toString().trim();
        expect(await see()).toBe("1");
        const container = engine.docker.getContainer(sandbox.id);
        const record = async () => {
          let seen = "";
          for (let i = 0; i < 200 && seen !== "1"; i++) {
            seen = (await container.inspect()).HostConfig.CpusetCpus ?? "";
            await new Promise((resolve) => setTimeout(resolve, 50));
          }
          return seen;
        };
        // The first time before the engine was told of these cores, the second time after.
        for (let time = 0; time < 2; time++) {
          await container.update({ CpusetCpus: "0,1" });
          expect(await see()).toBe("1");
          expect([await record(), await see()]).toEqual(["1", "1"]);
        }
        await shell.close();
      },
    );

    test("DK5 what waits for the next command is not there while one runs, and is done without where it died", async () => {
      const own = await driver.open();
      const waiting = () => processesWith("IFS= read -r line", own.id);
      const see = ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"] as const;
      await own.exec({ command: ["true"] });
      expect(await eventually(() => waiting().length > 0)).toBe(true);
      const [first] = waiting();
      expect((await own.exec({ command: see })).stdout.toString()).not.toContain("IFS=");
      expect(await eventually(() => waiting().length > 0)).toBe(true);
      expect(waiting()).not.toContain(first);
      for (const pid of waiting()) process.kill(pid, "SIGKILL");
      const lines = ["printf", "%s|", "a\nb", "'c'\n", "\\n$n`:`"] as const;
      expect((await own.exec({ command: lines })).stdout.toString()).toBe("a\nb|'c'\n|\\n$n`:`|");
      expect((await own.exec({ command: ["cat"], stdin: "in\nput" })).stdout.toString()).toBe("in\nput");
      const both = await Promise.all(["1", "2"].map((n) => own.exec({ command: ["echo", n] })));
      expect(both.map(({ stdout }) => stdout.toString())).toEqual(["1\n", "2\n"]);
      await own.close();
      expect(await eventually(() => waiting().length === 0)).toBe(true);
    });

    test("DK3 S4 nothing is left of a process that was killed, and what never started goes with the next driver", async () => {
      const program = fileURLToPath(new URL("support/holds-a-container.ts", import.meta.url));
      const args = ["--import", "tsx", "--conditions=source", program, engine.socket, engine.image, "167.25"];
      const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] });
      await new Promise<void>((resolve) => child.stdout.once("data", () => resolve()));
      const own = async () => {
        const all = await engine.docker.listContainers({ all: true, filters: { label: ["treadle.session"] } });
        return all.filter(({ Labels }) => Labels["treadle.session"]?.startsWith(`treadle-${child.pid}-`)).length;
      };
      expect([await own(), processesWith("167.25").length > 0]).toEqual([1, true]);
      child.kill("SIGKILL");
      for (let i = 0; i < 400 && (await own()) > 0; i++) await new Promise((resolve) => setTimeout(resolve, 50));
      expect([await own(), processesWith("167.25")]).toEqual([0, []]);

      const { hostname } = await import("node:os");
      const labels = { "treadle.session": `treadle-${child.pid}-1-dead`, "treadle.host": hostname() };
      await engine.docker.createContainer({ Image: engine.image, Cmd: ["true"], Labels: labels });
      expect(await own()).toBe(1);
      const next = driverOf(true);
      await (await next.open()).close();
      expect(await own()).toBe(0);
      await next.close();
    });

    test("a trajectory has an image, a user, a working folder and an environment of its own: a root-owned /testbed", async () => {
      const image = "treadle-test:testbed";
      const script =
        "mkdir /testbed && echo made > /testbed/file && echo tester:x:1234:1234::/testbed:/bin/sh >> /etc/passwd";
      const made = await engine.docker.createContainer({
        Image: engine.image,
        Cmd: ["sh", "-c", script],
        HostConfig: { NetworkMode: "none" },
      });
      await made.start();
      await made.wait();
      await made.commit({
        repo: "treadle-test",
        tag: "testbed",
        changes: 'ENV PATH="/testbed/bin:/bin"\nENV GREETING="hello = all"',
      });
      await made.remove({ force: true });
      const { socket } = engine;
      const own = new DockerDriver({ image: engine.image, images: ["treadle-test:*"], socket });
      const actions = new CommandActions(
        new ActionPool({ managers: [new CpuManager({ nodes: [describeHost()] })] }),
        own,
      );
      const run = async (trajectory: string, script: string) => {
        const command = ["sh", "-c", script] as const;
        const spec = { kind: "sh", cost: { cpu: 1 }, retries: { limit: 3 } };
        const { stdout } = await actions.submit(trajectory, spec, { command }).result;
        return stdout.toString().trim();
      };
      const container = { image, workingFolder: "/testbed" };
      actions.openTrajectory("root", { container: { ...container, user: "root" }, environment: { ANSWER: "42" } });
      expect(await run("root", 'pwd; id -u; cat file; echo "$ANSWER" > written; cat written')).toBe(
        "/testbed\n0\nmade\n42",
      );
      // As the image has it, where the trajectory says nothing else.
      expect(await run("root", 'echo "$PATH $GREETING"')).toBe("/testbed/bin:/bin hello = all");
      actions.openTrajectory("tester", { container: { ...container, user: "tester" } });
      expect(await run("tester", "id -u; cat file; touch written 2>/dev/null || echo refused")).toBe(
        "1234\nmade\nrefused",
      );
      for (const [name, bad, message] of [
        ["nobody", { user: "no-such-user" }, /user 'no-such-user' cannot be used in image 'treadle-test:image'/],
        [
          "lost",
          { workingFolder: "/no/such" },
          /working folder '\/no\/such' cannot be used in image 'treadle-test:image' by user '65534:65534': .*; name one/,
        ],
        ["absent", { image: "treadle-test:absent" }, /has no image 'treadle-test:absent'; fetch it with 'docker pull/],
        [
          "foreign",
          { image: "other:image" },
          /'other:image' is not allowed here; allowed are 'treadle-test:image', 'treadle-test:\*'/,
        ],
      ] as const) {
        actions.openTrajectory(name, { container: bad });
        await expect(run(name, "true")).rejects.toMatchObject({
          code: "sandbox.unavailable",
          message: expect.stringMatching(message),
        });
      }
      const containers = () => engine.docker.listContainers({ all: true, filters: { label: ["treadle.session"] } });
      const before = (await containers()).length;
      await actions.close();
      // What failed to open left none: the two that are open go.
      for (let i = 0; i < 100 && (await containers()).length > before - 2; i++)
        await new Promise((resolve) => setTimeout(resolve, 50));
      expect((await containers()).length).toBe(before - 2);
    });

    test("image, user, working folder and environment of a trajectory are asked for over gRPC", async () => {
      const config = ActionServiceConfig.parse({
        listen: "127.0.0.1:0",
        drivers: ["docker"],
        docker: { image: engine.image, images: ["treadle-test:*"], socket: engine.socket },
      });
      const service = await openActionService(config, ".");
      const { call, submit, close } = connectActions(service.address);
      const open = { image: engine.image, user: "0:0", working_folder: "/etc", environment: { ANSWER: "42" } };
      await call("OpenTrajectory", { trajectory: "t", ...open });
      const run = submit({
        trajectory: "t",
        command: ["sh", "-c", 'pwd; id -u; echo "$ANSWER"; cat passwd | head -c 4'],
      });
      expect(await run.ended).toBeUndefined();
      const printed = run.events.filter(({ event }) => event === "output").map(({ output }) => output!.stdout);
      expect(Buffer.concat(printed).toString()).toBe("/etc\n0\n42\nroot");
      await call("OpenTrajectory", { trajectory: "foreign", image: "other:image" });
      expect(await submit({ trajectory: "foreign", command: ["true"] }).ended).toMatchObject({
        details: expect.stringMatching(/image 'other:image' is not allowed here/),
      });
      close();
      await service.close();
    });

    test("CA2 whoever needs a pull no more waits for it no longer", async () => {
      // A registry that accepts, and says nothing.
      const sockets = new Set<Socket>();
      const registry = createServer((socket) => {
        sockets.add(socket);
        socket.on("error", () => {}).once("close", () => sockets.delete(socket));
        socket.resume();
      });
      await new Promise<void>((resolve) => registry.listen(0, "127.0.0.1", () => resolve()));
      const image = `localhost:${(registry.address() as AddressInfo).port}/slow:latest`;
      const own = new DockerDriver({ image: engine.image, images: [image], pull: "missing", socket: engine.socket });
      const gone = new AbortController();
      const opening = own.open({ container: { image } }, gone.signal).catch((error: Error) => error.message);
      while (sockets.size === 0) await new Promise((resolve) => setTimeout(resolve, 20));
      gone.abort(new Error("its caller went away"));
      expect(await opening).toBe("its caller went away");
      await own.close();
      for (const socket of sockets) socket.destroy();
      registry.close();
    });

    test("an image that the engine lacks is named, with the remedy", async () => {
      expect(await dockerDriverLacks(engine.image, engine.socket)).toBe(undefined);
      expect(await dockerDriverLacks("none:such", engine.socket)).toMatch(/has no image 'none:such'; .*docker pull/);
    });
  },
);

test.skipIf(missing !== undefined)("an engine of the tests ends with them, whatever they end of", async () => {
  const program = fileURLToPath(new URL("support/holds-an-engine.ts", import.meta.url));
  const args = ["--import", "tsx", "--conditions=source", program];
  const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] });
  const [line] = (await once(child.stdout, "data")) as [Buffer];
  const folder = dirname(line.toString().trim().slice("unix://".length));
  expect([existsSync(folder), processesWith(folder).length > 0]).toEqual([true, true]);
  child.kill("SIGKILL");
  expect(await eventually(() => !existsSync(folder) && processesWith(folder).length === 0)).toBe(true);
});

test("an engine that does not answer is named, with the remedy", async () => {
  expect(await dockerDriverLacks("any", "unix:///nowhere/docker.sock")).toMatch(
    /no Docker engine answers at 'unix:\/\/\/nowhere\/docker.sock' \(ENOENT\); install it/,
  );
  const driver = new DockerDriver({ image: "any", socket: "unix:///nowhere/docker.sock" });
  await expect(driver.open()).rejects.toMatchObject({ code: "sandbox.failed" });
  await driver.close();
});

test("no call waits for an engine that accepts it and says nothing; what is gone is removed", async () => {
  const gone = createHttpServer((request, response) => {
    if (request.url?.includes("gone")) response.writeHead(404).end("{}");
  }).listen(0, "127.0.0.1");
  await once(gone, "listening");
  const engine = new DockerEngine("session", `tcp://127.0.0.1:${(gone.address() as AddressInfo).port}`, 200);
  await Promise.all([engine.removeContainer("gone"), engine.removeImage("gone")]);
  const calls = [engine.removeContainer("held"), engine.removeImage("held"), engine.listen()];
  const failure = {
    code: "sandbox.failed",
    message: expect.stringMatching(/the Docker engine did not do '[a-z ]+': no answer within 200 ms/),
  };
  await Promise.all(calls.map((call) => expect(call).rejects.toMatchObject(failure)));
  gone.closeAllConnections();
  gone.close();
});

test("SN2 images are removed one at a time, since the engine fails where it removes one twice; a failure stops no other", async () => {
  let [now, most, all] = [0, 0, 0];
  const slow = createHttpServer((_, response) => {
    most = Math.max(most, ++now);
    setTimeout(() => {
      now--;
      response.writeHead(++all === 2 ? 500 : 200).end("[]");
    }, 20);
  }).listen(0, "127.0.0.1");
  await once(slow, "listening");
  const engine = new DockerEngine("session", `tcp://127.0.0.1:${(slow.address() as AddressInfo).port}`);
  const removed = await Promise.allSettled(["a", "b", "c"].map((name) => engine.removeImage(name)));
  expect(removed.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
  expect([most, all]).toEqual([1, 3]);
  engine.close();
  slow.closeAllConnections();
  slow.close();
});

test("a driver without images says so when one is asked for", async () => {
  const driver = new ProcessDriver();
  await expect(driver.open({ container: { image: "any" } })).rejects.toMatchObject({
    code: "sandbox.unavailable",
    message: expect.stringMatching(/'process' has no images: image 'any' was asked for/),
  });
  await (await driver.open({ container: { image: undefined } })).close();
  await driver.close();
});
