import net from "node:net";
import { Worker } from "@treadle/runtime";

/** Answers calls, and by hand on a bare socket. */
export class EchoWorker extends Worker<Record<string, never>> {
  static override readonly module = import.meta.url;
  #server: net.Server | undefined;

  async echo<T>(value: T): Promise<T> {
    return value;
  }

  /** Listens at `path`; answers `answerBytes` for every `requestBytes` received. */
  async listenByHand(path: string, requestBytes: number, answerBytes: number): Promise<void> {
    const answer = Buffer.alloc(answerBytes, 1);
    this.#server = net.createServer((socket) => {
      let received = 0;
      socket.on("data", (bytes) => {
        for (received += bytes.length; received >= requestBytes; received -= requestBytes) socket.write(answer);
      });
      socket.on("error", () => {});
    });
    await new Promise<void>((resolve) => this.#server?.listen(path, resolve));
  }

  override async teardown(): Promise<void> {
    this.#server?.close();
  }
}
