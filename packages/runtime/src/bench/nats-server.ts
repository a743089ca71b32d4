/**
 * A NATS server of the benchmark's own: the one in PATH, else the distribution's package unpacked into a cache folder,
 * which needs no root. It listens on a free port, keeps its streams in a folder of its own, and ends with its handle.
 */
import { execFile, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);

export type NatsServer = AsyncDisposable & { readonly port: number; readonly version: string };

/** Rejects with the reason when no server can be had. */
export async function startNatsServer(): Promise<NatsServer> {
  const binary = await findServer();
  const { stdout } = await run(binary, ["--version"]);
  const folder = await mkdtemp(join(tmpdir(), "treadle-nats-"));
  const port = await freePort();
  const args = ["-a", "127.0.0.1", "-p", String(port), "-js", "-sd", folder];
  const child = spawn(binary, args, { stdio: ["ignore", "ignore", "pipe"] });
  const exited = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  const endWithUs = () => child.kill("SIGKILL");
  process.once("exit", endWithUs);
  const dispose = async () => {
    child.kill("SIGTERM");
    const timer = setTimeout(() => child.kill("SIGKILL"), 2000);
    await exited;
    clearTimeout(timer);
    process.off("exit", endWithUs);
    await rm(folder, { recursive: true, force: true });
  };
  try {
    await ready(child.stderr, exited);
  } catch (error) {
    await dispose();
    throw error;
  }
  return { port, version: stdout.trim().replace(/^.*v/, ""), [Symbol.asyncDispose]: dispose };
}

/** Its log goes to standard error; what it prints when it listens is the signal. */
function ready(log: NodeJS.ReadableStream, exited: Promise<void>): Promise<void> {
  return new Promise((resolve, reject) => {
    let text = "";
    const timer = setTimeout(() => reject(new Error("nats-server was not ready within 10 s")), 10_000);
    log.on("data", (bytes: Buffer) => {
      if (text.length < 65_536) text += bytes.toString();
      if (!text.includes("Server is ready")) return;
      clearTimeout(timer);
      resolve();
    });
    void exited.then(() => {
      clearTimeout(timer);
      reject(new Error(`nats-server ended at once: ${text.slice(-200)}`));
    });
  });
}

async function findServer(): Promise<string> {
  for (const folder of (process.env["PATH"] ?? "").split(":")) {
    if (folder && existsSync(join(folder, "nats-server"))) return join(folder, "nats-server");
  }
  const cache = join(process.env["XDG_CACHE_HOME"] ?? join(homedir(), ".cache"), "treadle", "nats-server");
  for (const place of ["usr/sbin", "usr/bin"]) {
    if (existsSync(join(cache, place, "nats-server"))) return join(cache, place, "nats-server");
  }
  await mkdir(cache, { recursive: true });
  await run("apt-get", ["download", "nats-server"], { cwd: cache, timeout: 60_000 });
  const archive = (await readdir(cache)).find((file) => file.endsWith(".deb"));
  if (archive === undefined) throw new Error("apt-get downloaded no package 'nats-server'");
  await run("dpkg", ["-x", join(cache, archive), cache]);
  await rm(join(cache, archive));
  for (const place of ["usr/sbin", "usr/bin"]) {
    if (existsSync(join(cache, place, "nats-server"))) return join(cache, place, "nats-server");
  }
  throw new Error("the package 'nats-server' holds no such program");
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const { port } = probe.address() as { port: number };
      probe.close(() => resolve(port));
    });
  });
}
