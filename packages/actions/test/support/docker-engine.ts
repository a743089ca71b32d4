/**
 * A Docker Engine of a test's own: the distribution's packages unpacked into a cache folder, started by hand with its data
 * in a folder that goes with it, and one image (`docker-image.ts`). Nothing of it is installed, and no other engine is touched.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { unpackPackages } from "@treadle/transport/testing";
import Docker from "dockerode";
import { prepareImage, type TestImage } from "./docker-image.ts";

export type TestEngine = {
  readonly socket: string;
  readonly image: string;
  /** why the image has none */
  readonly lacksPython: string | undefined;
  readonly docker: Docker;
  close(): Promise<void>;
};

/** What an engine is started with: nothing has to be fetched then. */
export async function prepareDocker(): Promise<{ readonly programs: string; readonly image: TestImage }> {
  const programs = await unpackPackages("docker", ["docker.io", "containerd", "runc", "busybox-static"]);
  return { programs, image: await prepareImage(join(programs, "bin/busybox")) };
}

/** gVisor's program. */
async function runscPath(): Promise<string> {
  return join(await unpackPackages("runsc", ["runsc"]), "usr/bin/runsc");
}

/**
 * An engine that ends with who started it, of whatever that ends: tests that were left out close nothing. It is given some time
 * to end, and leaves mounts behind when it is killed.
 */
const endsWithItsInput = `folder=$1; shift; exec 3<&0
"$@" 3<&- & engine=$!
{ cat <&3 >/dev/null; kill $engine; sleep 15; kill -9 $engine; } 2>/dev/null & watch=$!
wait $engine
kill $watch
for mount in $(grep -o "$folder[^ ]*" /proc/mounts); do umount -l "$mount"; done 2>/dev/null
rm -rf "$folder"`;

/** The engine, or why there is none here; `runsc`: with gVisor, which has no network but loopback. */
export async function startDockerEngine({ runsc = false } = {}): Promise<TestEngine | string> {
  if (process.platform !== "linux") return "Docker's engine runs on Linux";
  if (process.getuid?.() !== 0) return "Docker's engine needs root";
  let programs: string;
  let image: TestImage;
  let gvisor = "";
  try {
    ({ programs, image } = await prepareDocker());
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
    "sh",
    [
      ...["-c", endsWithItsInput, "sh", folder, join(programs, "usr/sbin/dockerd")],
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
    { stdio: ["pipe", "ignore", "pipe"], env: { ...process.env, PATH: path }, detached: true },
  );
  let log = "";
  daemon.stderr.on("data", (chunk) => {
    log = `${log}${chunk}`.slice(-4000);
  });
  const ended = once(daemon, "exit");
  const close = async (): Promise<void> => {
    daemon.stdin.end();
    await ended;
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
  const { archive, lacksPython } = image;
  const engine = { socket: `unix://${socket}`, image: "treadle-test:image", lacksPython, docker, close };
  try {
    const progress = await docker.importImage(archive, { repo: "treadle-test", tag: "image" });
    await followed(docker, progress);
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

/** Until what the engine tells of its progress ends; throws what failed on the way. */
export async function followed(docker: Docker, progress: NodeJS.ReadableStream): Promise<void> {
  await new Promise<void>((resolve, reject) =>
    docker.modem.followProgress(progress, (error, told: readonly { error?: string }[]) => {
      const failure = error ?? told.find((one) => one.error !== undefined)?.error;
      if (failure == null) resolve();
      else reject(failure instanceof Error ? failure : new Error(failure));
    }),
  );
}
