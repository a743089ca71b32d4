/** What a NATS server says of itself before anybody logs in, and whether we could use it. */
import { connect } from "node:net";
import { NatsConfig, TreadleError } from "@treadle/contracts";
import { openNatsControlPlane } from "@treadle/transport";
import { z } from "zod";
import { clusterValues, keyHolder } from "./cluster-folder.ts";

/** It is printed, and comes from whoever listens there. */
const Printable = z.string().regex(/^[\x20-\x7e]{0,200}$/);
const Info = z.object({
  version: Printable,
  jetstream: z.boolean().default(false),
  cluster: Printable.optional(),
  auth_required: z.boolean().default(false),
  tls_required: z.boolean().default(false),
  host: Printable.default(""),
});

export type NatsInfo = {
  readonly version: string;
  readonly jetStream: boolean;
  readonly cluster: string | undefined;
  /** anyone who reaches it may connect */
  readonly isOpen: boolean;
  /** it takes no connection that is not encrypted */
  readonly isEncrypted: boolean;
  /** the address that it listens on */
  readonly host: string;
};

const timeoutMs = 3000;
const maxInfoBytes = 64 * 1024;

/** The first line of the protocol, `INFO {…}`, of the server at this address; undefined when none sends one. */
export async function natsInfo(url: string): Promise<NatsInfo | undefined> {
  const line = await firstLineOf(url).catch(() => undefined);
  const info = Info.safeParse(parseInfo(line ?? ""));
  if (!info.success) return undefined;
  const { version, jetstream, cluster, auth_required, tls_required, host } = info.data;
  return { version, jetStream: jetstream, cluster, isOpen: !auth_required, isEncrypted: tls_required, host };
}

/** Of servers that are reached over a network, and do not encrypt what passes there. */
export const readOnTheWay =
  "what passes on the network can be read and changed by whoever is on the way there, and who logs in be acted for; encrypt it with --tls-cert, --tls-key and --tls-ca of 'treadle cluster init'";

/** Connects as this machine's runner or agent would: with its key of the cluster, or TREADLE_NATS_USER, …_PASSWORD and …_TOKEN. */
export async function natsProblem(urls: string, cluster?: string): Promise<string | undefined> {
  try {
    const holder = cluster === undefined ? undefined : await keyHolder(cluster);
    const values = cluster === undefined || holder === undefined ? {} : await clusterValues(cluster, holder);
    const nats = NatsConfig.parse({ ...values, url: urls.split(",") });
    // A node's key may keep nothing.
    const plane = await openNatsControlPlane({ nats, name: "treadle doctor", keepsRecords: holder?.role !== "node" });
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
