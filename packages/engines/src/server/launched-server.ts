/**
 * An inference server that this process has started for one engine, and ends.
 *
 * Owned here: the program, its key and its name. Its weights and requests are the engine's.
 *
 * LSV1 it listens on a loopback port; what answers there counts only where it takes the generated key, refuses calls without it,
 *    and serves the generated name: no other server is ever taken for it.
 * LSV2 `ended` tells of its end, and of one that answers nobody any more, which is ended; not of the end that `close` asks for.
 * LSV3 its key is in no argument, and in nothing that it prints here.
 */
import { randomBytes } from "node:crypto";
import { mkdtemp, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Clock, TreadleError } from "@treadle/contracts";
import { checkProgram, checkVariables, pythonInterpreter } from "@treadle/contracts/program-rights";
import { Reaper, ServerProgram } from "@treadle/transport";
import { z } from "zod";
import { HttpClient } from "./http-client.ts";
import { installOf, type LaunchRequest, type LaunchSettings, pythonOf, type ServerLauncher } from "./server-launch.ts";

const maxLoggedBytes = 8 * 2 ** 20;
const maxLineLength = 2_000;
const modelsPath = "/v1/models";
const Models = z.object({ data: z.array(z.object({ id: z.string() })) });

export type LaunchOptions = {
  /** of what the engine does with it */
  readonly request: Pick<LaunchRequest, "model" | "contextLength" | "dtype" | "sharesDevices" | "adapters">;
  /** the accelerators that it computes on */
  readonly devices: readonly number[];
  /** after which one that does not answer is taken for dead */
  readonly callTimeoutMs: number;
  readonly clock: Clock;
  /** takes what the server prints, the first 8 MiB of it */
  readonly log: (line: string) => void;
};

export class LaunchedServer {
  readonly url: string;
  readonly apiKey: string;
  readonly ended: Promise<TreadleError>;
  readonly #program: ServerProgram;
  readonly #client: HttpClient;
  readonly #callTimeoutMs: number;
  readonly #clock: Clock;
  readonly #dispose: () => Promise<void>;
  #reason: string | undefined;
  #isClosed = false;
  #unwatch = () => {};

  private constructor(
    launcher: ServerLauncher,
    program: ServerProgram,
    client: HttpClient,
    apiKey: string,
    { callTimeoutMs, clock }: LaunchOptions,
    dispose: () => Promise<void>,
  ) {
    this.url = client.url;
    this.apiKey = apiKey;
    this.#program = program;
    this.#client = client;
    this.#callTimeoutMs = callTimeoutMs;
    this.#clock = clock;
    this.#dispose = dispose;
    this.ended = new Promise((resolve) => {
      void program.ended.then(async (how) => {
        this.#unwatch();
        if (this.#isClosed) return;
        await this.close();
        const what = this.#reason ?? how.replaceAll(apiKey, "***");
        resolve(new TreadleError("service.failed", `the ${launcher.name} that this rank had started ${what}`));
      });
    });
    this.#watch();
  }

  /**
   * Throws `config.invalid` for a program, a module or arguments that cannot be, `node.forbidden` where the node does not allow them
   * (PGR1), `service.failed` where it does not answer in time, or has ended.
   */
  static async start(
    launcher: ServerLauncher,
    settings: LaunchSettings,
    options: LaunchOptions,
  ): Promise<LaunchedServer> {
    const [program, ...first] = commandOf(launcher, settings);
    const { request, devices, clock, callTimeoutMs } = options;
    const apiKey = randomBytes(32).toString("hex");
    const name = `treadle-${randomBytes(6).toString("hex")}`;
    const folder = await mkdtemp(join(tmpdir(), "treadle-server-"));
    const keyFile = join(folder, "key.yaml");
    await writeFile(keyFile, JSON.stringify({ "api-key": apiKey }), { mode: 0o600 });
    const reaper = new Reaper([], [folder]);
    const wordsAt = (port: number) =>
      launcher.words({
        ...request,
        ...{ name, port, apiKey, keyFile },
        numDevices: Math.max(1, devices.length),
        isDeterministic: settings.deterministic ?? devices.length > 0,
      });
    const { environment, fixedEnvironment } = wordsAt(0);
    const started = new ServerProgram({
      name: launcher.name,
      command: (port) => {
        const { args, fixedArgs } = wordsAt(port);
        const filled = first.map((word) =>
          word
            .replaceAll("{port}", `${port}`)
            .replaceAll("{model}", request.model)
            .replaceAll("{devices}", devices.join()),
        );
        return { program, args: [...filled, ...args, ...settings.arguments, ...fixedArgs] };
      },
      environment: {
        ...process.env,
        ...(devices.length > 0 && { CUDA_VISIBLE_DEVICES: devices.join() }),
        ...environment,
        ...settings.environment,
        ...fixedEnvironment,
      },
      probe: (url, signal) => whose(url, { apiKey, name, signal }),
      probed: modelsPath,
      startTimeoutMs: settings.startTimeoutMs,
      startTimeoutKey: "engine.launch.startTimeoutMs",
      reaper,
      onLine: bounded(options.log, apiKey),
    });
    const dispose = async () => {
      await started.end();
      await reaper.close();
    };
    try {
      const client = new HttpClient(await started.ready, apiKey, callTimeoutMs, clock);
      return new LaunchedServer(launcher, started, client, apiKey, options, dispose);
    } catch (error) {
      await dispose();
      throw explained(error as Error, launcher, settings, apiKey);
    }
  }

  /** Ends it for a reason, such as `has no answer`, which `ended` tells. */
  giveUp(reason: string): void {
    if (this.#isClosed) return;
    this.#reason ??= `${reason}, and was ended`;
    void this.#program.end();
  }

  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#unwatch();
    this.#client.close();
    await this.#dispose();
  }

  /** Any answer will do: what it computes, and with which weights, is the engine's to judge. */
  #watch(): void {
    this.#unwatch = this.#clock.after(this.#callTimeoutMs, () => {
      const look = () => this.#client.call("GET", modelsPath);
      // One connection may break, of a server that is well.
      look()
        .catch(look)
        .then(
          () => !this.#isClosed && this.#watch(),
          (error: Error) => this.giveUp(`answers nobody (${error.message})`),
        );
    });
  }
}

/** PGR1. Arguments may have a server run other code, so with arguments of the configuration's an interpreter is a program like any. */
function commandOf(
  launcher: ServerLauncher,
  { python, command, arguments: args, environment }: LaunchSettings,
): [program: string, ...words: string[]] {
  const refused = args.find((word) => isOwn(word, launcher.own));
  if (refused !== undefined)
    throw new TreadleError(
      "config.invalid",
      `engine.launch.arguments has '${refused}', which Treadle sets itself, as it does ${launcher.own.join(", ")}; leave it out`,
    );
  checkVariables(Object.keys(environment), "engine.launch.environment");
  if (command !== undefined) {
    checkProgram(command[0] as string, "engine.launch.command");
    return command as [string, ...string[]];
  }
  const interpreter = pythonInterpreter(python, "engine.launch.python");
  if (args.length > 0) checkProgram(interpreter, "engine.launch.arguments");
  return [interpreter, "-m", launcher.module];
}

/** Python's parsers take `_` for `-`. What they take for it besides is overruled by the arguments behind it. */
function isOwn(word: string, own: readonly string[]): boolean {
  const name = word.split("=")[0]!.replaceAll("_", "-");
  return own.includes(name);
}

/** LSV1. */
async function whose(
  url: string,
  { apiKey, name, signal }: { readonly apiKey: string; readonly name: string; readonly signal: AbortSignal },
): Promise<boolean | "stranger"> {
  const health = await fetch(`${url}/health`, { signal });
  await health.arrayBuffer();
  if (!health.ok) return false;
  const anonymous = await fetch(url + modelsPath, { signal });
  await anonymous.arrayBuffer();
  const answer = await fetch(url + modelsPath, { signal, headers: { authorization: `Bearer ${apiKey}` } });
  const text = await answer.text();
  if (answer.status === 503) return false;
  const models = answer.ok ? Models.safeParse(parsed(text)).data?.data : undefined;
  return anonymous.status === 401 && models?.some(({ id }) => id === name) ? true : "stranger";
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** LSV3. */
function bounded(log: (line: string) => void, apiKey: string): (line: string) => void {
  let leftBytes = maxLoggedBytes;
  return (line) => {
    const text = line.trimEnd().replaceAll(apiKey, "***").slice(0, maxLineLength);
    if (text === "" || leftBytes <= 0) return;
    leftBytes -= Buffer.byteLength(text);
    log(leftBytes > 0 ? text : `the server has printed '${maxLoggedBytes}' bytes; what comes is left out`);
  };
}

function explained(error: Error, launcher: ServerLauncher, { python, command }: LaunchSettings, apiKey: string): Error {
  const message = error.message.replaceAll(apiKey, "***");
  const program = python ?? command?.[0];
  const key = python === undefined ? "engine.launch.command" : "engine.launch.python";
  const top = launcher.module.split(".")[0]!;
  const isAbsent = ["ENOENT", "EACCES"].includes((error.cause as NodeJS.ErrnoException | undefined)?.code ?? "");
  const isUninstalled = new RegExp(`No module named '?${top}\\b`).test(message);
  if (!isAbsent && !isUninstalled)
    return error instanceof TreadleError ? new TreadleError(error.code, message, { cause: error.cause }) : error;
  const lacks = isAbsent ? "cannot be started" : `has no module '${top}'`;
  return new TreadleError(
    "config.invalid",
    `'${program}', which ${key} names for ${launcher.name}, ${lacks}; run '${installOf(launcher)}', and set engine.launch.python to '${pythonOf(launcher)}'`,
    { cause: error },
  );
}
