import { once } from "node:events";
import net from "node:net";
import { expect, test } from "vitest";
import { adoptSocket } from "../src/link/adopt-socket.ts";

test("what comes to an accepted socket is read into memory of ours; half-closing and the server's end work as ever", async () => {
  const memory = Buffer.alloc(1000);
  let at = 0;
  const server = net.createServer({ allowHalfOpen: true, pauseOnConnect: true }, (accepted) => {
    const adopted = adoptSocket(accepted, {
      buffer: () => memory.subarray(at),
      callback: (length) => {
        at += length;
        return true;
      },
    });
    if (adopted === undefined) throw new Error("this Node adopts no socket; bulk to whoever accepts costs twice");
    expect(adopted.remoteAddress).toBe("127.0.0.1");
    adopted.on("end", () => adopted.end(`${at}`));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const socket = net.connect({ host: "127.0.0.1", port, allowHalfOpen: true });
  socket.write("first ");
  await once(socket, "connect");
  socket.end("second");
  const [answer] = (await once(socket, "data")) as [Buffer];
  expect(answer.toString()).toBe("12");
  expect(memory.subarray(0, at).toString()).toBe("first second");
  await once(socket, "close");
  await new Promise((resolve) => server.close(resolve));
});
