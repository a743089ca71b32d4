/** The server of an engine, once everything is known of it that could keep the engine from it. */
import { resolve } from "node:path";
import { type Clock, isLoopback } from "@treadle/contracts";
import type { TransformerConfig } from "../embedded/transformer-config.ts";
import { SglangProtocol } from "../sglang/sglang-protocol.ts";
import { VllmProtocol } from "../vllm/vllm-protocol.ts";
import { HttpClient } from "./http-client.ts";
import { LaunchedServer } from "./launched-server.ts";
import { ModelFolder } from "./model-folder.ts";
import { judgeFacts, judgeFolder, judgeRoutes, ownBytesOf, probeRoutes, refuseServer } from "./probe.ts";
import { apiKeyOf, type ServerConfig, urlOf } from "./server-config.ts";
import { serverLaunchers } from "./server-launchers.ts";
import type { ServerProtocol } from "./server-protocol.ts";

export type OpenServerOptions = {
  readonly rank: number;
  readonly devices: readonly number[];
  readonly warn: (message: string) => void;
  readonly log: (line: string) => void;
  readonly clock: Clock;
};

export type OpenServer = {
  readonly client: HttpClient;
  readonly protocol: ServerProtocol;
  readonly model: ModelFolder;
  /** of the memory that it shares, what its weights take where they leave without its cache */
  readonly weightsBytes: number | undefined;
  /** whether it tells what it has chosen before a completion ends */
  readonly streams: boolean;
  /** undefined where it ran already */
  readonly launched: LaunchedServer | undefined;
};

/** Throws `config.invalid` with everything that it lacks, `service.failed` where none answers. */
export async function openServer(
  config: ServerConfig,
  limits: TransformerConfig,
  { rank, devices, warn, log, clock }: OpenServerOptions,
): Promise<OpenServer> {
  const { name } = serverLaunchers[config.kind];
  const model = await ModelFolder.open(resolve(config.model));
  const loadsAdapters = config.loads === "adapter";
  const gaps = judgeFolder(model, limits);
  if (loadsAdapters && config.trainer.lora === undefined)
    gaps.push(
      "engine.loads is 'adapter', and engine.trainer trains none; set engine.trainer.lora, or engine.loads to 'weights'",
    );
  refuseServer(name, gaps);
  const launched = config.launch && (await launch(config, limits, model, { devices, log, clock }));
  const url = launched?.url ?? urlOf(config, rank);
  const apiKey = launched?.apiKey ?? apiKeyOf(config);
  const client = new HttpClient(url, apiKey, config.callTimeoutMs, clock);
  try {
    if (apiKey !== undefined && !isLoopback(new URL(url).hostname) && !url.startsWith("https:"))
      warn(`the key of ${url} goes over the network as it is; put TLS before the server, and use its https address`);
    const protocol = config.kind === "sglang" ? new SglangProtocol(client) : new VllmProtocol(client);
    const server = `${name} at ${url}`;
    const use = { sharesDevices: config.sharedMemoryMiB !== undefined, loadsAdapters, isLaunched: !!launched };
    const routes = judgeRoutes(name, await probeRoutes(client, protocol.needs), use);
    refuseServer(server, routes.gaps);
    const facts = await protocol.describe();
    refuseServer(server, judgeFacts(facts, model, limits, use));
    for (const warning of routes.warnings) warn(warning);
    if (!facts.isDeterministic)
      warn(
        `${server} does not promise the same tokens for the same key whatever runs beside them; ${protocol.determinismRemedy}`,
      );
    if (facts.lacksStreams !== undefined)
      warn(
        `${server} tells nothing of a completion before its end, so it begins again where the server dies; start it with ${facts.lacksStreams}`,
      );
    const weightsBytes = ownBytesOf(facts, config.sharedMemoryMiB, (what) => warn(`${server} ${what}`));
    return { client, protocol, model, weightsBytes, streams: facts.lacksStreams === undefined, launched };
  } catch (error) {
    client.close();
    await launched?.close();
    throw error;
  }
}

function launch(
  { kind, launch: settings, sharedMemoryMiB, callTimeoutMs, loads, trainer }: ServerConfig,
  { contextLength }: TransformerConfig,
  model: ModelFolder,
  options: Pick<OpenServerOptions, "devices" | "log" | "clock">,
): Promise<LaunchedServer> {
  return LaunchedServer.start(serverLaunchers[kind], settings!, {
    ...options,
    callTimeoutMs,
    request: {
      model: model.path,
      contextLength,
      dtype: settings!.dtype ?? model.dtype,
      sharesDevices: sharedMemoryMiB !== undefined,
      adapters: loads === "adapter" ? trainer.lora : undefined,
    },
  });
}
