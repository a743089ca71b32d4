/** A container and what runs in it, by nothing but requests to the Docker Engine: what our driver is compared with. */
import { request } from "node:http";
import type { Duplex } from "node:stream";

export type ContainerByHand = {
  /** A command of its own, until its output ends. */
  exec(command: readonly string[]): Promise<void>;
  /** The input and output of a shell that is there. */
  shell(): Promise<Duplex>;
  remove(): Promise<void>;
};

type Place = { readonly socketPath: string } | { readonly host: string; readonly port: number };

function placeOf(address: string): Place {
  if (address.startsWith("unix://")) return { socketPath: address.slice("unix://".length) };
  const { hostname, port } = new URL(address.replace(/^tcp:/, "http:"));
  return { host: hostname, port: Number(port) || 2375 };
}

export async function containerByHand(
  image: string,
  address = process.env.DOCKER_HOST ?? "unix:///var/run/docker.sock",
): Promise<ContainerByHand> {
  const place = placeOf(address);
  const call = (method: string, path: string, body: object = {}): Promise<{ readonly Id: string }> =>
    new Promise((resolve, reject) => {
      const headers = { "content-type": "application/json" };
      const asking = request({ ...place, method, path, headers }, (answer) => {
        const pieces: Buffer[] = [];
        answer.on("data", (piece: Buffer) => pieces.push(piece));
        answer.once("error", reject);
        answer.once("end", () => {
          const text = Buffer.concat(pieces).toString("latin1");
          if (answer.statusCode! >= 300) reject(new Error(`the engine answered ${answer.statusCode}: ${text}`));
          else resolve(text.startsWith("{") ? JSON.parse(text) : { Id: "" });
        });
      });
      asking.once("error", reject);
      asking.end(JSON.stringify(body));
    });
  const HostConfig = { NetworkMode: "none" };
  const { Id } = await call("POST", "/containers/create", { Image: image, Cmd: ["sleep", "86400"], HostConfig });
  await call("POST", `/containers/${Id}/start`);
  const attached = { AttachStdout: true, AttachStderr: true };
  return {
    async exec(command) {
      const exec = await call("POST", `/containers/${Id}/exec`, { ...attached, Cmd: command });
      await call("POST", `/exec/${exec.Id}/start`, { Detach: false });
    },
    async shell() {
      const asked = { ...attached, AttachStdin: true, Cmd: ["/bin/sh"] };
      const exec = await call("POST", `/containers/${Id}/exec`, asked);
      return new Promise((resolve, reject) => {
        const headers = { "content-type": "application/json", connection: "Upgrade", upgrade: "tcp" };
        const asking = request({ ...place, method: "POST", path: `/exec/${exec.Id}/start`, headers });
        asking.once("upgrade", (_, stream) => resolve(stream));
        asking.once("error", reject);
        asking.end(JSON.stringify({ Detach: false }));
      });
    },
    async remove() {
      await call("DELETE", `/containers/${Id}?force=1&v=1`);
    },
  };
}
