import { verify } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { NatsConfig } from "@treadle/contracts";
import { openNatsControlPlane } from "@treadle/transport";
import { afterAll, beforeAll, expect, test } from "vitest";
import { publicKeyOf } from "../../src/control-plane/nkey-signature.ts";
import { makeKey } from "../../src/control-plane/trust-file.ts";

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-nonce-"));
});
afterAll(() => rm(folder, { recursive: true }));

/** What a client with this file answers a server that wants a nonce signed. */
async function answerTo(
  nonce: string,
  credentialsFile: string,
): Promise<{ nkey?: string; jwt?: string; sig?: string }> {
  const answer = new Promise<string>((resolve) => {
    const server = createServer((socket) => {
      const info = { server_id: "s", version: "2.10.0", max_payload: 1048576, auth_required: true, nonce };
      socket.write(`INFO ${JSON.stringify({ ...info, host: "127.0.0.1", port: 1, proto: 1, headers: true })}\r\n`);
      socket.once("data", (data) => {
        resolve(/CONNECT (.*)\r\n/.exec(data.toString())?.[1] as string);
        socket.destroy();
        server.close();
      });
      socket.on("error", () => {});
    });
    server.listen(0, "127.0.0.1", () => {
      const url = `nats://127.0.0.1:${(server.address() as AddressInfo).port}`;
      const nats = NatsConfig.parse({ url, credentialsFile });
      openNatsControlPlane({ nats, name: "test", env: {} }).catch(() => {}); // this is no server
    });
  });
  return JSON.parse(await answer);
}

test("TR8: a key signs a server's nonce, and nothing else that a server asks for, as a command would be", async () => {
  const key = makeKey();
  const seed = join(folder, "runner.nk");
  await writeFile(seed, key.seed, { mode: 0o600 });
  const creds = join(folder, "runner.creds");
  const part = (what: string, text: string) => `-----BEGIN ${what}-----\n${text}\n------END ${what}------\n\n`;
  await writeFile(creds, part("NATS USER JWT", "e30.e30.x") + part("USER NKEY SEED", key.seed.trim()), { mode: 0o600 });
  const isSigned = (nonce: string, sig = "") =>
    verify(null, Buffer.from(nonce), publicKeyOf(key.publicKey), Buffer.from(sig, "base64url"));
  const command = JSON.stringify([
    "treadle command 2",
    "treadle.command.node.a.1",
    key.publicKey,
    "seal",
    "id",
    0,
    "box",
  ]);
  for (const file of [seed, creds]) {
    const nonce = "u4Oq3fYx-_Zk1A7";
    expect(isSigned(nonce, (await answerTo(nonce, file)).sig)).toBe(true);
    for (const text of [command, "[]", "a b", "a".repeat(65), `${nonce}\n`])
      expect([text, isSigned(text, (await answerTo(text, file)).sig)]).toEqual([text, false]);
  }
}, 60_000);
