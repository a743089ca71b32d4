/**
 * A Docker Engine of a test's own: the distribution's packages unpacked into a cache folder, started by hand with its data
 * in a folder that goes with it, and an image made of busybox. Nothing of it is installed, and no other engine is touched.
 */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { chmodSync, mkdirSync, symlinkSync } from "node:fs";
import { cp, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { promisify } from "node:util";
import { unpackPackages } from "@treadle/transport/testing";
import Docker from "dockerode";

const run = promisify(execFile);

export type TestEngine = {
  readonly socket: string;
  readonly image: string;
  readonly docker: Docker;
  close(): Promise<void>;
};

export const dockerPrograms = (): Promise<string> =>
  unpackPackages("docker", ["docker.io", "containerd", "runc", "busybox-static"]);

/** gVisor's program. */
async function runscPath(): Promise<string> {
  return join(await unpackPackages("runsc", ["runsc"]), "usr/bin/runsc");
}

/** The engine, or why there is none here; `runsc`: with gVisor, which has no network but loopback. */
export async function startDockerEngine({ runsc = false } = {}): Promise<TestEngine | string> {
  if (process.platform !== "linux") return "Docker's engine runs on Linux";
  if (process.getuid?.() !== 0) return "Docker's engine needs root";
  let programs: string;
  let gvisor = "";
  try {
    programs = await dockerPrograms();
    if (runsc) gvisor = await runscPath();
  } catch (error) {
    return `Docker's engine cannot be had: ${(error as Error).message.split("\n")[0]}`;
  }
  const folder = await mkdtemp(join(tmpdir(), "treadle-docker-"));
  const socket = join(folder, "docker.sock");
  const configuration = join(folder, "daemon.json");
  const runtimeArgs = ["--platform=ptrace", "--network=none"];
  const runtimes = {
    runsc: { path: gvisor, runtimeArgs },
    "runsc-overlay": { path: gvisor, runtimeArgs: [...runtimeArgs, "--overlay"] },
  };
  await writeFile(configuration, JSON.stringify(runsc ? { runtimes } : {}));
  const path = [join(programs, "usr/bin"), join(programs, "usr/sbin"), process.env.PATH].join(":");
  const daemon = spawn(
    join(programs, "usr/sbin/dockerd"),
    [
      ...["--iptables=false", "--ip6tables=false", "--bridge=none", "--exec-opt", "native.cgroupdriver=cgroupfs"],
      ...[
        "--default-ulimit",
        "nofile=1024:1024",
        "--data-root",
        join(folder, "data"),
        "--exec-root",
        join(folder, "run"),
      ],
      ...["--config-file", configuration, "--pidfile", join(folder, "pid"), "-H", `unix://${socket}`],
    ],
    { stdio: ["ignore", "ignore", "pipe"], env: { ...process.env, PATH: path } },
  );
  let log = "";
  daemon.stderr.on("data", (chunk) => {
    log = `${log}${chunk}`.slice(-4000);
  });
  const kill = (): void => void daemon.kill("SIGKILL");
  process.once("exit", kill);
  const close = async (): Promise<void> => {
    process.off("exit", kill);
    await end(daemon);
    // The engine leaves mounts behind when it is killed.
    await run("sh", ["-c", `for m in $(grep -o '${folder}[^ ]*' /proc/mounts); do umount -l "$m"; done`]).catch(
      () => {},
    );
    await rm(folder, { recursive: true, force: true });
  };
  const docker = new Docker({ socketPath: socket });
  for (let tries = 0; ; tries++) {
    const answers = await docker.ping().then(
      () => true,
      () => false,
    );
    if (answers) break;
    if (daemon.exitCode !== null || tries === 300) {
      await close();
      return `Docker's engine did not start here: ${log.trim().split("\n").at(-1)}`;
    }
    await delay(100);
  }
  const engine = { socket: `unix://${socket}`, image: "treadle-test:busybox", docker, close };
  try {
    await importBusybox(docker, join(programs, "bin/busybox"), folder);
    const first = await docker.createContainer({
      Image: engine.image,
      Cmd: ["true"],
      HostConfig: { NetworkMode: "none", ...(runsc ? { Runtime: "runsc" } : {}) },
    });
    await first.start();
    await first.remove({ force: true });
    return engine;
  } catch (error) {
    await close();
    return `Docker's engine starts no container here: ${(error as Error).message.trim()}`;
  }
}

async function end(daemon: ChildProcess): Promise<void> {
  if (daemon.exitCode !== null || daemon.signalCode !== null) return;
  const ended = new Promise((resolve) => daemon.once("exit", resolve));
  daemon.kill("SIGTERM");
  const timer = setTimeout(() => daemon.kill("SIGKILL"), 15_000);
  await ended;
  clearTimeout(timer);
}

/** A root file system of one static program and links to it. */
async function importBusybox(docker: Docker, busybox: string, folder: string): Promise<void> {
  const root = join(folder, "image");
  for (const name of ["bin", "usr/bin", "etc", "tmp", "work"]) mkdirSync(join(root, name), { recursive: true });
  chmodSync(join(root, "tmp"), 0o1777);
  await cp(busybox, join(root, "bin/busybox"));
  const { stdout } = await run(busybox, ["--list"]);
  for (const name of stdout.split("\n").filter((one) => one !== "" && one !== "busybox"))
    symlinkSync("busybox", join(root, "bin", name));
  await writeFile(join(root, "etc/passwd"), "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n");
  const archive = join(folder, "image.tar");
  await run("tar", ["-C", root, "-cf", archive, "."]);
  const progress = await docker.importImage(archive, { repo: "treadle-test", tag: "busybox" });
  await new Promise((resolve, reject) => docker.modem.followProgress(progress, (e) => (e ? reject(e) : resolve(null))));
}
