/** The thread of a relay: its connection to NATS, the unix socket that it serves, and the tunnels between them. */
import { createServer, connect as dial, type Socket } from "node:net";
import { parentPort, workerData } from "node:worker_threads";
import type { NatsConnection } from "@nats-io/transport-node";
import { type AskMember, connectNats, memberAsker } from "../control-plane/connect-nats.ts";
import type { NatsThreadOptions } from "../control-plane/nats-messages.ts";
import { isAnswer } from "../control-plane/nkey-seed.ts";
import { Openings, proveOpening, readAnswer, signAnswer } from "./openings.ts";
import { type Opening, type RelayTargets, readOpening, readRelayLine, relayTarget } from "./relay-target.ts";
import { Tunnel } from "./tunnel.ts";
import { type Side, sealBytes, TunnelSeal } from "./tunnel-seal.ts";

export type RelayThreadOptions = RelayTargets & {
  readonly nats: NatsThreadOptions;
  readonly subject: string;
  readonly member: string;
  /** the run's */
  readonly token: string;
};

const { nats, subject, member, token, path, ports } = workerData as RelayThreadOptions;
const port = parentPort as NonNullable<typeof parentPort>;

/** Of one member: of a node with many workers, each of which reaches each here. */
const openings = new Openings({ token, subject, member }, { maxTotal: 4096, maxFrom: 1024, maxSeen: 65_536 });
const maxDialled = 4096;
const openTimeoutMs = 4000;
const maxLineBytes = 256;
const tunnels = new Set<Tunnel>();

/** Joins a socket to the side of a tunnel; `own` and `other` end the subjects of what each side is sent. */
function joinTunnel(connection: NatsConnection, id: string, socket: Socket, own: Side): Tunnel {
  const other = own === "a" ? "b" : "a";
  const seal = new TunnelSeal(token, id, own); // TU5
  const wire = {
    publish: (message: Uint8Array) => {
      if (!connection.isClosed()) connection.publish(`${subject}.tunnel.${id}.${other}`, seal.seal(message));
    },
    maxBytes: (connection.info?.max_payload ?? 1024 * 1024) - sealBytes,
    ended: () => {
      tunnels.delete(tunnel);
      subscription.unsubscribe();
    },
  };
  const tunnel = new Tunnel(socket, wire);
  const subscription = connection.subscribe(`${subject}.tunnel.${id}.${own}`, {
    callback: (error, message) => {
      const opened = error ? "lost" : seal.open(message.data);
      if (opened === "lost") tunnel.close();
      else if (opened !== undefined) tunnel.receive(opened);
    },
  });
  tunnels.add(tunnel);
  return tunnel;
}

/** Another member asks for a process here. */
function serve(connection: NatsConnection): void {
  connection.subscribe(`${subject}.open.${member}`, {
    callback: (error, message) => {
      if (error || message.reply === undefined || !isAnswer(message.reply)) return; // CP4
      const opening = readOpening(message.string());
      // TU6. Nothing is signed for who sends again what it has heard: its answer would be another's.
      if (opening === undefined || !openings.admit(opening)) return void message.respond("refused");
      const answer = (word: string) => void message.respond(signAnswer(token, opening.tunnel, word)); // TU7
      const target = relayTarget(opening.target, { ports, path });
      if (target === undefined) {
        openings.ended(opening.from);
        return answer("nobody is there");
      }
      const socket = dial({ ...target, allowHalfOpen: true, noDelay: true });
      socket.once("close", () => openings.ended(opening.from));
      socket.pause();
      socket.once("error", () => answer("nobody listens there"));
      socket.once("connect", () => {
        joinTunnel(connection, opening.tunnel, socket, "b");
        connection.flush().then(
          () => {
            answer("open");
            socket.resume();
          },
          () => socket.destroy(),
        );
      });
    },
  });
}

/** A process here asks for one elsewhere, by a line with the member's name and the target's. */
async function dialFor(connection: NatsConnection, ask: AskMember, socket: Socket): Promise<void> {
  const line = await firstLine(socket);
  const asked = readRelayLine(line ?? "");
  if (asked === undefined || tunnels.size >= maxDialled) return void socket.destroy();
  const { to, target } = asked;
  const id = crypto.randomUUID();
  const tunnel = joinTunnel(connection, id, socket, "a");
  try {
    const proof = proveOpening(token, { subject, from: member, to, tunnel: id, target });
    const opening = JSON.stringify({ tunnel: id, target, from: member, proof } satisfies Opening);
    const opened = await ask(
      `${subject}.open.${to}`,
      opening,
      (answer) => readAnswer(token, id, answer),
      openTimeoutMs,
    );
    if (opened === "open") socket.resume();
    else tunnel.close(); // nobody is there, or lets it in: the dialler sees its socket closed
  } catch {
    tunnel.close(); // the connection has ended
  }
}

/** What follows the line stays in the socket, which is paused. */
function firstLine(socket: Socket): Promise<string | undefined> {
  return new Promise((resolve) => {
    let bytes = Buffer.alloc(0);
    const timer = setTimeout(() => end(undefined), openTimeoutMs);
    const end = (line: string | undefined) => {
      clearTimeout(timer);
      socket.off("data", onData).off("close", onClose).off("error", onClose);
      resolve(line);
    };
    const onClose = () => end(undefined);
    const onData = (more: Buffer) => {
      bytes = Buffer.concat([bytes, more]);
      const at = bytes.indexOf(10);
      if (at < 0 && bytes.length <= maxLineBytes) return;
      socket.pause();
      if (at >= 0 && at + 1 < bytes.length) socket.unshift(bytes.subarray(at + 1));
      end(at < 0 ? undefined : bytes.subarray(0, at).toString("latin1"));
    };
    socket.on("data", onData).on("close", onClose).on("error", onClose);
  });
}

try {
  const connection = await connectNats(nats);
  serve(connection);
  const ask = memberAsker(connection, nats);
  const server = createServer({ allowHalfOpen: true }, (socket) => void dialFor(connection, ask, socket));
  if (path !== undefined) {
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject).listen(path, resolve);
    });
  }
  await connection.flush();
  port.once("message", async () => {
    for (const tunnel of [...tunnels]) tunnel.close();
    server.close();
    await connection.flush().catch(() => {});
    await connection.close();
    port.close();
  });
  port.postMessage(undefined);
} catch (error) {
  port.postMessage(error instanceof Error ? error.message : String(error));
  port.close();
}
