import { TreadleError } from "@treadle/contracts";
import type { HttpClient } from "./http-client.ts";
import type { ModelFolder } from "./model-folder.ts";
import type { RouteNeed, ServerFacts, ServerProtocol, TokenAnswer } from "./server-protocol.ts";

/** How a server answers a method that no route has: 405 where the path is one of its routes. */
export type RouteAnswer = { readonly need: RouteNeed; readonly status: number; readonly anonymousStatus: number };

export type Findings = { readonly gaps: readonly string[]; readonly warnings: readonly string[] };

/** What an engine does with its server besides generating. */
export type Use = {
  readonly sharesDevices: boolean;
  readonly loadsAdapters: boolean;
  /** it was started for the engine, and listens on this machine alone */
  readonly isLaunched: boolean;
};

/** What is missing, and what should be known, of a server with these routes. */
export function judgeRoutes(name: string, routes: readonly RouteAnswer[], use: Use): Findings {
  const gaps: string[] = [];
  const warnings: string[] = [];
  const wanted = routes.filter(
    ({ need }) => (use.sharesDevices || !need.isForSharing) && (use.loadsAdapters || !need.isForAdapters),
  );
  if (wanted.some(({ status }) => status === 401 || status === 403)) {
    gaps.push(
      "it refuses the key; set engine.apiKeyVariable to the name of the environment variable with the server's key",
    );
    return { gaps, warnings };
  }
  for (const { need, status } of wanted) {
    if (status !== 404) continue;
    const what = `it has no '${need.path}', which ${need.purpose}; ${need.remedy}`;
    (need.isOptional ? warnings : gaps).push(what);
  }
  const open = wanted.filter(({ anonymousStatus }) => anonymousStatus !== 401 && anonymousStatus !== 403);
  if (open.length > 0 && gaps.length === 0 && !use.isLaunched) {
    const paths = open.map(({ need }) => `'${need.path}'`).join(", ");
    warnings.push(
      `${name} answers ${paths} without a key: whoever reaches its port can end its requests and replace its weights; let it listen on a loopback address, or close its port to others`,
    );
  }
  return { gaps, warnings };
}

type Limits = { readonly vocabSize: number; readonly contextLength: number };

/** What is wrong between the model's folder and the model that is configured, which is known before there is a server. */
export function judgeFolder(folder: ModelFolder, model: Limits): string[] {
  const gaps: string[] = [];
  if (model.vocabSize > folder.vocabSize)
    gaps.push(
      `model.vocabSize is '${model.vocabSize}' where engine.model has a vocabulary of '${folder.vocabSize}'; lower it`,
    );
  if (folder.contextLength !== undefined && model.contextLength > folder.contextLength)
    gaps.push(
      `model.contextLength is '${model.contextLength}' where engine.model reads '${folder.contextLength}' tokens; lower it`,
    );
  return gaps;
}

/** What is wrong between a server, the model's folder and the model that is configured. */
export function judgeFacts(
  facts: ServerFacts,
  folder: ModelFolder,
  model: Limits,
  { sharesDevices, loadsAdapters }: Omit<Use, "isLaunched">,
): string[] {
  const gaps: string[] = [];
  if (facts.contextLength !== undefined && model.contextLength > facts.contextLength)
    gaps.push(
      `model.contextLength is '${model.contextLength}' where the server takes '${facts.contextLength}' tokens; lower it, or start the server with as many`,
    );
  const known = facts.architectures.length > 0 && folder.architectures.length > 0;
  if (known && !facts.architectures.some((one) => folder.architectures.includes(one)))
    gaps.push(
      `it serves a '${facts.architectures.join("', '")}' where engine.model is a '${folder.architectures.join("', '")}'; start it with that folder`,
    );
  if (sharesDevices && facts.lacksRelease)
    gaps.push(`it cannot give its devices back; start it with ${facts.lacksRelease}`);
  if (loadsAdapters && facts.lacksAdapters)
    gaps.push(`it takes no adapters; start it with ${facts.lacksAdapters}, or set engine.loads to 'weights'`);
  return gaps;
}

/**
 * Whether log-probabilities are those of the distribution that is sampled, by the likeliest token's at two temperatures;
 * undefined where that distribution is uniform, which looks the same at both.
 */
export function judgeLogprobs(atOne: number, atHigher: number, vocabSize: number): boolean | undefined {
  const visible = 1e-3;
  if (Math.abs(atOne + Math.log(vocabSize)) < visible) return undefined;
  return Math.abs(atOne - atHigher) > Math.min(visible, Math.abs(atOne) / 2);
}

/** The highest that vLLM takes. */
const probedTemperature = 2;

/** Asks a server that computes; undefined where it cannot be told. */
export async function probeLogprobs(
  protocol: ServerProtocol,
  vocabSize: number,
  salt: string,
  timeoutMs: number,
): Promise<boolean | undefined> {
  const ask = (temperature: number): Promise<TokenAnswer> =>
    protocol.generate(
      { id: `${salt}-probe-${temperature}`, tokens: [0], maxTokens: 1, temperature, stopTokens: [], seed: 1, salt },
      { timeoutMs, withTop: true },
    );
  const [atOne, atHigher] = [(await ask(1)).topLogprob, (await ask(probedTemperature)).topLogprob];
  if (atOne === undefined || atHigher === undefined) return undefined;
  return judgeLogprobs(atOne, atHigher, vocabSize);
}

/** Asks for every needed route by a method that changes nothing, once with the key and once without. */
export async function probeRoutes(client: HttpClient, needs: readonly RouteNeed[]): Promise<RouteAnswer[]> {
  const routes: RouteAnswer[] = [];
  for (const need of needs) {
    const { status } = await client.call("DELETE", need.path);
    const { status: anonymousStatus } = await client.call("DELETE", need.path, { isAnonymous: true });
    routes.push({ need, status, anonymousStatus });
  }
  return routes;
}

export function refuseServer(server: string, gaps: readonly string[]): void {
  if (gaps.length === 0) return;
  throw new TreadleError("config.invalid", `${server} cannot be used:${gaps.map((gap) => `\n- ${gap}`).join("")}`);
}

/** Of the memory that a server shares, what its weights take where they leave without its cache; undefined where it is one piece. */
export function ownBytesOf(
  { weightsBytes = 0 }: Pick<ServerFacts, "weightsBytes">,
  sharedMemoryMiB: number | undefined,
  warn: (what: string) => void,
): number | undefined {
  const weightsMiB = weightsBytes / 2 ** 20;
  if (sharedMemoryMiB === undefined || weightsBytes === 0) return undefined;
  if (weightsMiB < sharedMemoryMiB) return weightsBytes;
  warn(
    `says that its weights alone take '${Math.ceil(weightsMiB)}' MiB, where engine.sharedMemoryMiB is '${sharedMemoryMiB}'; set that to all that it takes`,
  );
  return undefined;
}
