/**
 * The way out of a sandbox that has a network of its own with nothing but a loopback: a port there, which a proxy in this process
 * answers. What is allowed is decided, and every connection made, outside of the sandbox.
 */
import { spawn } from "node:child_process";
import { Server } from "node:net";
import { TreadleError } from "@treadle/contracts";
import type { AllowList } from "../network/allow-list.ts";
import type { EgressProxy } from "../network/egress-proxy.ts";

const port = 3128;
const url = `http://127.0.0.1:${port}`;
const local = "localhost,127.0.0.1,::1";

/** By which programs find it. */
export const proxyEnvironment: Readonly<Record<string, string>> = {
  http_proxy: url,
  https_proxy: url,
  HTTP_PROXY: url,
  HTTPS_PROXY: url,
  no_proxy: local,
  NO_PROXY: local,
};

const startTimeoutMs = 10_000;

/** A socket belongs to the network in which it was made, whoever has it: this makes one, and gives it to its parent. */
const listenAndGive = `
// What a program there does not read counts against nobody's memory; where these may not be written, they stay as they are.
for (const name of ["tcp_rmem", "tcp_wmem"])
  try { require("node:fs").writeFileSync("/proc/sys/net/ipv4/" + name, "4096 65536 262144"); } catch {}
const server = require("node:net").createServer();
server.once("error", (error) => { console.error(error.message); process.exit(1); });
server.listen(${port}, "127.0.0.1", 512, () => process.send("here", server, () => process.exit(0)));
`;

/** `pid`: of a process in the sandbox's network. Needs root. Throws `sandbox.failed`. */
export async function openProxy(pid: number, allow: readonly AllowList[]): Promise<EgressProxy> {
  const server = await listenIn(pid);
  // It is loaded only where one is asked for.
  const { EgressProxy } = await import("../network/egress-proxy.ts");
  const proxy = new EgressProxy({ allow });
  proxy.serve(server);
  return proxy;
}

function listenIn(pid: number): Promise<Server> {
  return new Promise((resolve, reject) => {
    const enter = ["--target", String(pid), "--net", "--", process.execPath, "-e", listenAndGive];
    const child = spawn("nsenter", enter, {
      stdio: ["ignore", "ignore", "pipe", "ipc"],
      env: { PATH: process.env.PATH },
    });
    let complaint = "";
    const fail = (why: string): void => {
      clearTimeout(timer);
      child.kill("SIGKILL");
      reject(new TreadleError("sandbox.failed", `the sandbox has no way to its proxy: ${why}`));
    };
    const timer = setTimeout(() => fail(`nothing listened within ${startTimeoutMs} ms`), startTimeoutMs);
    child.stderr!.on("data", (chunk: Buffer) => {
      complaint += chunk;
    });
    child.once("message", (_, given) => {
      clearTimeout(timer);
      if (given instanceof Server) resolve(given);
      else fail("no socket came");
    });
    child.once("error", (error) => fail(error.message));
    child.once("close", (code) => fail(complaint.trim() || `it ended with ${code}`));
  });
}
