/** Which images may be started, how they come here, and what they say of what runs in them. */
import { TreadleError } from "@treadle/contracts";
import type { z } from "zod";
import type { DockerEngine } from "./docker-engine.ts";
import type { DockerOptions } from "./docker-options.ts";
import { credentialsFor, registryOf } from "./registry-credentials.ts";

/** The one to start; throws `sandbox.unavailable` where it may not be had, or is not. */
export async function allowedImage(
  engine: DockerEngine,
  { image: own, images, pull, authFile }: z.infer<typeof DockerOptions>,
  asked: string = own,
  signal: AbortSignal,
): Promise<string> {
  const allowed = [own, ...images];
  if (!allowed.some((one) => one === asked || (one.endsWith("*") && asked.startsWith(one.slice(0, -1)))))
    throw new TreadleError(
      "sandbox.unavailable",
      `image '${asked}' is not allowed here; allowed are ${allowed.map((one) => `'${one}'`).join(", ")}; add it to docker.images`,
    );
  const { docker } = engine;
  if ((await engine.unlessGone("inspect image", docker.getImage(asked).inspect())) !== undefined) return asked;
  if (pull === "never")
    throw new TreadleError(
      "sandbox.unavailable",
      `the Docker engine has no image '${asked}'; fetch it with 'docker pull ${asked}', or set docker.pull: missing`,
    );
  const registry = registryOf(asked);
  const authconfig = await credentialsFor(authFile, asked).catch((cause: Error) => {
    throw new TreadleError("sandbox.unavailable", `image '${asked}' could not be pulled: ${cause.message}`, { cause });
  });
  try {
    // This side stops waiting at once; the engine may take its time to end a pull whose connection has ended.
    const progress = (await docker.pull(asked, { abortSignal: signal, authconfig })) as NodeJS.ReadableStream &
      Destroyable;
    const cancel = (): void => void progress.destroy(signal.reason);
    signal.addEventListener("abort", cancel, { once: true });
    try {
      await new Promise<void>((resolve, reject) => {
        progress.once("error", reject);
        progress.once("close", () => reject(new Error("the engine ended the connection")));
        docker.modem.followProgress(progress, (error, told: readonly { error?: string }[]) => {
          // What fails on the way is told in what is said of the progress.
          const failure = error ?? told.find((one) => one.error !== undefined)?.error;
          if (failure == null) resolve();
          else reject(typeof failure === "string" ? new Error(failure) : failure);
        });
      });
    } finally {
      signal.removeEventListener("abort", cancel);
    }
    return asked;
  } catch (cause) {
    signal.throwIfAborted();
    const why = (cause as Error).message.trim();
    const remedy = saysRefused.test(why) ? remedyOf(registry, authFile !== undefined, authconfig !== undefined) : "";
    throw new TreadleError("sandbox.unavailable", `image '${asked}' could not be pulled: ${why}${remedy}`, { cause });
  }
}

/** What engines say of a registry that wants other credentials; some registries then say that there is no such image. */
const saysRefused = /unauthori[sz]ed|denied|authenti|credentials|forbidden|login/i;

function remedyOf(registry: string, hasFile: boolean, hasCredentials: boolean): string {
  if (!hasFile) return `; give credentials for registry '${registry}' in docker.authFile`;
  const login = `('docker login ${registry}')`;
  return hasCredentials
    ? `; registry '${registry}' refuses the credentials that docker.authFile has for it: renew them ${login}`
    : `; docker.authFile has no credentials for registry '${registry}': add them ${login}`;
}

type Destroyable = { destroy(error?: Error): unknown };

/** What the image says of every process in it, such as a PATH. */
export async function environmentOf(engine: DockerEngine, image: string): Promise<Record<string, string>> {
  const { Config } = await engine.call("inspect image", engine.docker.getImage(image).inspect());
  const variables = (Config?.Env ?? []).map((line) => {
    const at = line.indexOf("=");
    return at < 1 ? undefined : ([line.slice(0, at), line.slice(at + 1)] as const);
  });
  return Object.fromEntries(variables.filter((one) => one !== undefined));
}
