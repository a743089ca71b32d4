/** The process groups by which an engine on PyTorch sends and gets weights, as Node sees them: names, and who waits where. */
import { TreadleError, WeightLink, type WeightTicket } from "@treadle/contracts";
import type { Message, TorchClient } from "./torch-client.ts";
import type { TorchConfig } from "./torch-config.ts";

/** Where processes of an engine listen for others, and are reached by them. */
export type EngineAddress = { readonly host: string; readonly listen: string };

export const loopback: EngineAddress = { host: "127.0.0.1", listen: "127.0.0.1" };

/** As the process takes them; null where it has none. */
export function linkSettings(
  { collective, collectiveTimeoutMs, weightsBy }: TorchConfig,
  { host, listen }: EngineAddress,
): Message | null {
  if (collective === "off") return null;
  if (weightsBy === "bytes")
    throw new TreadleError(
      "config.invalid",
      `engine.collective is '${collective}' and engine.weightsBy 'bytes', which writes no file that could be sent; set weightsBy to 'device' or 'ticket'`,
    );
  return { backend: collective, host, listen, timeout_s: collectiveTimeoutMs / 1000 };
}

export class TorchLinks {
  readonly #client: TorchClient;
  readonly #collective: TorchConfig["collective"];
  /** by what their senders are known */
  readonly #names = new Map<string, string>();

  constructor(client: TorchClient, collective: TorchConfig["collective"]) {
    this.#client = client;
    this.#collective = collective;
  }

  /** what its own tickets say */
  get announced(): Pick<WeightTicket, "collective"> {
    return this.#collective === "off" ? {} : { collective: this.#collective };
  }

  to({ collective, device, nonce }: WeightTicket): string | undefined {
    return collective !== undefined && !device && collective === this.#collective
      ? (this.#names.get(nonce) ?? "")
      : undefined;
  }

  async offer(known: string): Promise<WeightLink> {
    const { link } = await this.#client.unary("Offer", { link: known });
    const { name, host, port, secret } = link as { name: string; host: string; port: number; secret: Uint8Array };
    return WeightLink.parse({
      name,
      ...(port > 0 && { place: { host, port, secret: Buffer.from(secret).toString("hex") } }),
    });
  }

  async join({ nonce }: WeightTicket, { name, place }: WeightLink): Promise<void> {
    if (!place) return;
    const { host, port, secret } = place;
    this.#names.delete(nonce);
    await this.#client.unary("Join", { link: { name, host, port, secret: Buffer.from(secret, "hex") } });
    this.#names.set(nonce, name);
  }

  /** The process keeps the link where weights are refused, and closes it where anything else fails. */
  failed({ nonce }: WeightTicket, error: unknown): void {
    if (!(error instanceof TreadleError && error.code === "engine.weights-mismatch")) this.#names.delete(nonce);
  }
}
