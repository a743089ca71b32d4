/**
 * What the driver asks of a Docker Engine: every call but a pull with a deadline, every failure in words, and the end of each
 * exec as the engine tells it (`exec_die`), because a command's output ends only with the last process that holds it open.
 */
import { Agent } from "node:http";
import { type Duplex, PassThrough, type Readable } from "node:stream";
import { TreadleError } from "@treadle/contracts";
import Docker from "dockerode";
import { z } from "zod";
import { EngineInfo, runtimeLacks } from "./docker-runtime.ts";

export const callMs = 30_000;
/** After its output has ended, until the engine is asked instead. */
const toldMs = 1000;

const ExecDied = z.object({
  Actor: z.object({ Attributes: z.object({ execID: z.string(), exitCode: z.coerce.number() }) }),
});

const RanOutOfMemory = z.object({ Action: z.literal("oom"), Actor: z.object({ ID: z.string() }) });

export type EngineStreams = { readonly stdin: Duplex; readonly stdout: PassThrough; readonly stderr: PassThrough };
export type EngineExec = EngineStreams & {
  readonly exec: Docker.Exec;
  /** its exit code, when its first process has ended */
  readonly exited: Promise<number>;
};

export class DockerEngine {
  readonly docker: Docker;
  readonly #session: string;
  readonly #callMs: number;
  /** Those of calls that were given up would keep this process. */
  readonly #connections = new Agent();
  readonly #waiting = new Map<string, (exitCode: number) => void>();
  readonly #outOfMemory = new Set<string>();
  #events: Readable | undefined;
  /** of the last image */
  #removal: Promise<unknown> = Promise.resolve();

  /** `socket` as in DOCKER_HOST: `unix:///path` or `tcp://host:port`; without it DOCKER_HOST, then the usual place. */
  constructor(session: string, socket?: string, limitMs = callMs) {
    this.#session = session;
    this.#callMs = limitMs;
    this.docker = engineAt(socket);
    const modem = this.docker.modem as unknown as { readonly protocol: string; agent?: Agent };
    if (modem.protocol === "http") modem.agent = this.#connections;
  }

  /** Begins to listen for the ends of commands, and for lack of memory, of containers with the label `treadle.session`. */
  async listen(): Promise<void> {
    const filters = { label: [`treadle.session=${this.#session}`], event: ["exec_die", "oom"] };
    const events = (await this.call("events", this.docker.getEvents({ filters }))) as Readable;
    this.#events = events;
    let text = "";
    events.on("data", (chunk: Buffer) => {
      const lines = (text + chunk).split("\n");
      text = lines.pop()!;
      for (const line of lines) if (line.trim() !== "") this.#told(line);
    });
    // Who waits then asks.
    events.on("error", () => {});
  }

  /** Throws `sandbox.failed`, whose cause is what the engine said. */
  async call<Result>(what: string, answer: Promise<Result>, limitMs = this.#callMs): Promise<Result> {
    try {
      return await inTime(answer, limitMs);
    } catch (cause) {
      const why = (cause as Error).message.trim();
      throw new TreadleError("sandbox.failed", `the Docker engine did not do '${what}': ${why}`, { cause });
    }
  }

  /** As `call`; undefined where what is asked about is gone. */
  async unlessGone<Result>(what: string, answer: Promise<Result>): Promise<Result | undefined> {
    return this.#unless([404], what, answer);
  }

  /** Where it is on its way already, the next driver sees to what is left. */
  async removeContainer(id: string): Promise<void> {
    await this.#unless([404, 409], "remove", this.docker.getContainer(id).remove({ force: true, v: true }));
  }

  /** One at a time: with an image go some that it was made on, and the engine fails where two calls remove the same. */
  async removeImage(id: string): Promise<void> {
    const removal = this.#removal.then(() =>
      this.#unless([404, 409], "remove image", this.docker.getImage(id).remove({ force: true })),
    );
    this.#removal = removal.catch(() => {});
    await removal;
  }

  async #unless<Result>(codes: readonly number[], what: string, answer: Promise<Result>): Promise<Result | undefined> {
    try {
      return await this.call(what, answer);
    } catch (error) {
      const { statusCode } = (error as { cause: { statusCode?: number } }).cause;
      if (statusCode !== undefined && codes.includes(statusCode)) return undefined;
      throw error;
    }
  }

  /** Whether the kernel ended something of the container for lack of memory; told a moment after. */
  ranOutOfMemory(container: string): boolean {
    return this.#outOfMemory.has(container);
  }

  async hasEnded(container: Docker.Container): Promise<boolean> {
    return (await this.unlessGone("inspect", container.inspect()))?.State.Running !== true;
  }

  async exec(container: Docker.Container, options: Docker.ExecCreateOptions): Promise<EngineExec> {
    const attached = { AttachStdin: true, AttachStdout: true, AttachStderr: true };
    const exec = await this.call("exec", container.exec({ ...attached, ...options }));
    const told = new Promise<number>((resolve) => this.#waiting.set(exec.id, resolve));
    const duplex = await this.call("exec start", exec.start({ hijack: true, stdin: true })).catch((error: unknown) => {
      this.#waiting.delete(exec.id);
      throw error;
    });
    const streams = this.streamsOf(duplex);
    const asked = new Promise<void>((resolve) => duplex.once("close", () => setTimeout(resolve, toldMs).unref())).then(
      () => this.#askUntilEnded(exec),
    );
    const exited = Promise.race([told, asked]).finally(() => this.#waiting.delete(exec.id));
    exited.catch(() => {});
    asked.catch(() => {});
    return { ...streams, exec, exited };
  }

  /** Of an attached connection, which carries stdout and stderr in one. */
  streamsOf(stdin: Duplex): EngineStreams {
    const [stdout, stderr] = [new PassThrough(), new PassThrough()];
    this.docker.modem.demuxStream(stdin, stdout, stderr);
    const end = (): void => {
      stdout.end();
      stderr.end();
    };
    stdin.once("end", end);
    stdin.once("close", end);
    stdin.on("error", end);
    return { stdin, stdout, stderr };
  }

  close(): void {
    this.#events?.destroy();
    this.#connections.destroy();
  }

  #told(line: string): void {
    let event: unknown;
    try {
      event = JSON.parse(line);
    } catch {
      return;
    }
    const lack = RanOutOfMemory.safeParse(event).data;
    if (lack !== undefined) this.#outOfMemory.add(lack.Actor.ID);
    const { data } = ExecDied.safeParse(event);
    if (data === undefined) return;
    const { execID, exitCode } = data.Actor.Attributes;
    this.#waiting.get(execID)?.(exitCode);
  }

  async #askUntilEnded(exec: Docker.Exec): Promise<number> {
    for (;;) {
      const { Running, ExitCode } = await this.call("exec inspect", exec.inspect());
      if (!Running && ExitCode !== null) return ExitCode;
      await new Promise((resolve) => setTimeout(resolve, 100).unref());
    }
  }
}

/** What is lacking for containers of the image, by the runtime; undefined when nothing is. */
export async function dockerDriverLacks(image: string, socket?: string, runtime?: string): Promise<string | undefined> {
  const docker = engineAt(socket);
  const place = socket ?? process.env.DOCKER_HOST ?? "unix:///var/run/docker.sock";
  try {
    await inTime(docker.ping());
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === "EACCES")
      return `the Docker engine at '${place}' may not be used by this user; join the group docker, or run as root`;
    return `no Docker engine answers at '${place}' (${code ?? message}); install it (Debian and Ubuntu: apt-get install docker.io, others: docs.docker.com/engine/install), start it (systemctl start docker), or give its address`;
  }
  if (runtime !== undefined) {
    try {
      const lacks = runtimeLacks(EngineInfo.parse(await inTime(docker.info())), runtime);
      if (lacks !== undefined) return lacks;
    } catch (error) {
      return `the Docker engine at '${place}' does not say what runtimes it has: ${(error as Error).message.trim()}`;
    }
  }
  try {
    await inTime(docker.getImage(image).inspect());
    return undefined;
  } catch (error) {
    if ((error as { statusCode?: number }).statusCode !== 404)
      return `image '${image}': ${(error as Error).message.trim()}`;
    return `the Docker engine at '${place}' has no image '${image}'; fetch it with 'docker pull ${image}', or build it`;
  }
}

async function inTime<Result>(answer: Promise<Result>, limitMs = callMs): Promise<Result> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer within ${limitMs} ms`)), limitMs);
  });
  try {
    return await Promise.race([answer, late]);
  } finally {
    clearTimeout(timer);
  }
}

function engineAt(socket: string | undefined): Docker {
  if (socket === undefined) return new Docker();
  if (socket.startsWith("unix://")) return new Docker({ socketPath: socket.slice("unix://".length) });
  if (socket.startsWith("/")) return new Docker({ socketPath: socket });
  const { hostname, port } = new URL(socket.replace(/^tcp:/, "http:"));
  return new Docker({ protocol: "http", host: hostname, port: Number(port) || 2375 });
}
