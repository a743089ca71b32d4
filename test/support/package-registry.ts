/** A registry of npm on loopback that has nothing but what is published to it. */
import { createServer, type IncomingMessage, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { z } from "zod";

const Published = z.looseObject({
  name: z.string(),
  access: z.string().nullish(),
  "dist-tags": z.record(z.string(), z.string()),
  versions: z.record(z.string(), z.looseObject({ name: z.string(), version: z.string() })),
  _attachments: z.record(z.string(), z.object({ data: z.base64() })),
});
export type Published = z.infer<typeof Published>;

export class PackageRegistry implements AsyncDisposable {
  /** by name, as it came */
  readonly published = new Map<string, Published>();
  readonly #server: Server;

  private constructor() {
    this.#server = createServer(async (request, response) => {
      const path = decodeURIComponent(new URL(request.url ?? "/", "http://registry").pathname.slice(1));
      if (request.method === "PUT") {
        const { success, data } = Published.safeParse(JSON.parse(await textOf(request)));
        // As npm's own: a version is published once.
        const isTaken = success && this.published.has(data.name);
        if (success && !isTaken) this.published.set(data.name, data);
        response.writeHead(success ? (isTaken ? 403 : 201) : 400, { "content-type": "application/json" });
        return void response.end("{}");
      }
      const found = this.published.get(path);
      response.writeHead(found ? 200 : 404, { "content-type": "application/json" });
      response.end(JSON.stringify(found ? { ...found, _attachments: undefined } : { error: "not_found" }));
    });
  }

  static async open(): Promise<PackageRegistry> {
    const registry = new PackageRegistry();
    await new Promise<void>((resolve) => registry.#server.listen(0, "127.0.0.1", resolve));
    return registry;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

async function textOf(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}
