/** What a NATS server says of itself before anybody logs in, and whether we could use it. */
import { connect } from "node:net";
import { NatsConfig, TreadleError } from "@treadle/contracts";
import { openNatsControlPlane } from "@treadle/transport";
import { z } from "zod";

const Info = z.object({
  version: z.string().max(100),
  jetstream: z.boolean().default(false),
  cluster: z.string().max(200).optional(),
});

export type NatsInfo = { readonly version: string; readonly jetStream: boolean; readonly cluster: string | undefined };

const timeoutMs = 3000;
const maxInfoBytes = 64 * 1024;

/** The first line of the protocol, `INFO {…}`, of the first of the addresses that sends one. */
export async function natsInfo(urls: string): Promise<NatsInfo | undefined> {
  for (const url of urls.split(",")) {
    const line = await firstLineOf(url).catch(() => undefined);
    const info = Info.safeParse(parseInfo(line ?? ""));
    if (!info.success) continue;
    const { version, jetstream, cluster } = info.data;
    return { version, jetStream: jetstream, cluster };
  }
  return undefined;
}

/** Connects as a runner would, with TREADLE_NATS_USER, …_PASSWORD and …_TOKEN. */
export async function natsProblem(urls: string): Promise<string | undefined> {
  try {
    const nats = NatsConfig.parse({ url: urls.split(",") });
    const plane = await openNatsControlPlane({ nats, name: "treadle doctor" });
    await plane.close();
    return undefined;
  } catch (error) {
    return error instanceof TreadleError ? error.message : String(error);
  }
}

function parseInfo(line: string): unknown {
  try {
    return JSON.parse(line.replace(/^INFO\s+/, ""));
  } catch {
    return undefined;
  }
}

function firstLineOf(url: string): Promise<string> {
  const { hostname, port } = new URL(url.includes("://") ? url : `nats://${url}`);
  return new Promise((resolve, reject) => {
    let text = "";
    const socket = connect({ host: hostname.replace(/^\[|\]$/g, ""), port: Number(port || 4222) });
    socket.setEncoding("utf8");
    socket.setTimeout(timeoutMs, () => socket.destroy(new Error("it sends nothing")));
    socket.once("error", reject);
    socket.once("close", () => reject(new Error("it sends no line")));
    socket.on("data", (part: string) => {
      text += part;
      const end = text.indexOf("\n");
      if (end < 0 && text.length < maxInfoBytes) return;
      resolve(text.slice(0, Math.max(0, end)));
      socket.destroy();
    });
  });
}
