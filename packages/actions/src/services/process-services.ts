/**
 * Model services as processes, for evict-on-execution (ARL-Tangram §5.3): one process a service, degree and chunk.
 *
 * Owned here: the processes, whether each is awake, the ports. Which service goes where and when is the manager's.
 *
 * SV1 after `evict` a service holds no device memory: its process has ended, or it has confirmed that it let go of it.
 * SV2 `restore` returns when the service answers; one that does not in time, or that cannot be woken, is ended.
 * SV3 after `close`, or any death of this process, no service is left.
 */
import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { promisify } from "node:util";
import { TreadleError } from "@treadle/contracts";
import { checkProgram, checkVariables } from "@treadle/contracts/program-rights";
import { timeLimit } from "@treadle/contracts/time-limit";
import { Reaper, ServerProgram } from "@treadle/transport";
import { z } from "zod";
import type { RestoreWay } from "../managers/gpu.ts";
import type { Grant, ServiceInstance } from "../managers/manager.ts";
import type { ServiceHost } from "../pool/service-preparation.ts";

export const ModelService = z.strictObject({
  /** its program and arguments, in which `{port}`, `{dop}` and `{devices}` (as 0,1) are filled in */
  command: z.array(z.string()).min(1),
  /** beside that of this process */
  environment: z.record(z.string(), z.string()).default({}),
  /**
   * How it gives its device memory back: `process` by its end; `sglang` (started with --enable-memory-saver) and `vllm`
   * (--enable-sleep-mode, VLLM_SERVER_DEV_MODE=1) stay and keep a copy in CPU memory, which is much faster to restore.
   */
  memory: z.enum(["process", "sglang", "vllm"]).default("process"),
  /** answers with a 2xx when the service is ready */
  healthPath: z.string().startsWith("/").default("/health"),
  /** that it may take until it is ready */
  startTimeoutMs: z.number().positive().default(600_000),
});
export type ModelService = z.input<typeof ModelService>;

export type ProcessServicesOptions = {
  readonly services: Readonly<Record<string, ModelService>>;
  /** free bytes of each of these devices, measured */
  readonly freeBytes?: ((node: number, devices: readonly number[]) => Promise<readonly number[]>) | undefined;
  /**
   * For services without accelerators: a device is this much of the machine's main memory, and free is what the processes
   * of its services do not have resident. Of an engine that starts processes of its own, the first is counted.
   */
  readonly mainMemoryBytes?: number | undefined;
  /** which accelerator of this machine each device is; default: that of the same number */
  readonly accelerators?: readonly number[] | undefined;
  /** told when a service's process has ended, but by its eviction, for the manager's `lost` */
  readonly onLost?: ((instance: ServiceInstance) => void) | undefined;
};

type Running = {
  readonly instance: ServiceInstance;
  readonly program: ServerProgram;
  /** once it has answered */
  url: string;
  state: "starting" | "awake" | "asleep";
  isAsked: boolean;
};

const calls = {
  sglang: { evict: "/release_memory_occupation", restore: "/resume_memory_occupation" },
  vllm: { evict: "/sleep?level=1", restore: "/wake_up" },
} as const;

const callTimeoutMs = 60_000;
/** An engine that works may take as long to say that it is well. */
const deadMs = 30_000;

export class ProcessServices implements ServiceHost {
  readonly #services: ReadonlyMap<string, z.infer<typeof ModelService>>;
  readonly #options: ProcessServicesOptions;
  readonly #running = new Map<string, Running>();
  readonly #reaper = new Reaper();

  /** Throws a ZodError where a service is invalid, and `node.forbidden` where this process may not start it (PGR1). */
  constructor(options: ProcessServicesOptions) {
    this.#options = options;
    this.#services = new Map(Object.entries(options.services).map(([name, s]) => [name, ModelService.parse(s)]));
    for (const [name, { command, environment }] of this.#services) {
      checkProgram(command[0] as string, `${name}.command`);
      checkVariables(Object.keys(environment), `${name}.environment`);
    }
  }

  /** Where a restored service answers; throws `service.failed` when it is not running. */
  url(instance: ServiceInstance): string {
    const running = this.#running.get(keyOf(instance));
    if (running?.state === "awake" && !running.isAsked) return running.url;
    throw failed(instance, "is not restored", "act on it only within an action that was granted it");
  }

  async restore(instance: ServiceInstance, signal: AbortSignal): Promise<RestoreWay> {
    const service = this.#service(instance);
    const asleep = this.#running.get(keyOf(instance));
    if (asleep?.state === "awake") return "otherwise";
    if (asleep !== undefined && service.memory !== "process") {
      try {
        await post(asleep.url + calls[service.memory].restore, signal);
        asleep.state = "awake";
        return "woken";
      } catch {
        // A wake that failed half-way keeps memory: only a new process is sure to be whole (SV2).
        await this.#end(asleep);
        signal.throwIfAborted();
      }
    }
    const running = this.#start(instance, service, signal);
    try {
      running.url = await running.program.ready;
      running.state = "awake";
      return asleep === undefined ? "started" : "otherwise";
    } catch (error) {
      await this.#end(running);
      throw error;
    }
  }

  async evict(instance: ServiceInstance): Promise<"asleep" | "ended"> {
    const running = this.#running.get(keyOf(instance));
    if (running === undefined) return "ended";
    running.state = "asleep";
    const { memory } = this.#service(instance);
    try {
      if (memory !== "process") {
        await post(running.url + calls[memory].evict);
        return "asleep";
      }
    } catch {
      // SV1: what does not confirm is ended.
    }
    await this.#end(running);
    return "ended";
  }

  /** After a request to it broke: one that does not answer any more is ended, and told as lost. */
  async endIfDead(instance: ServiceInstance, limitMs = deadMs): Promise<void> {
    const running = this.#running.get(keyOf(instance));
    if (
      running === undefined ||
      (await isHealthy(running.url + this.#service(instance).healthPath, timeLimit(limitMs)))
    )
      return;
    await this.#end(running);
    this.#options.onLost?.(instance);
  }

  async freeBytes({ devices }: Grant): Promise<readonly number[]> {
    if (devices === undefined) return [];
    const { node, start, size } = devices.chunk;
    const indices = Array.from({ length: size }, (_, i) => start + i);
    const { freeBytes: measure = nvidiaFreeBytes, mainMemoryBytes } = this.#options;
    if (mainMemoryBytes === undefined) return measure(node, this.#acceleratorsOf(start, size));
    return Promise.all(indices.map(async (device) => mainMemoryBytes - (await this.#residentBytes(node, device))));
  }

  /** Ends all of them, those that sleep, too: they hold nothing of any device. */
  async endAll(): Promise<void> {
    const end = async (running: Running): Promise<void> => {
      await this.#end(running);
      this.#options.onLost?.(running.instance);
    };
    await Promise.all([...this.#running.values()].map(end));
  }

  async close(): Promise<void> {
    await this.endAll();
    await this.#reaper.close();
  }

  #acceleratorsOf(start: number, size: number): number[] {
    return Array.from({ length: size }, (_, i) => this.#options.accelerators?.[start + i] ?? start + i);
  }

  /** Of the processes on this device, in equal parts on the devices of each. */
  async #residentBytes(node: number, device: number): Promise<number> {
    let sum = 0;
    for (const { instance, program } of this.#running.values()) {
      const { chunk } = instance;
      if (chunk.node !== node || device < chunk.start || device >= chunk.start + chunk.size) continue;
      const status = await readFile(`/proc/${program.pid}/status`, "utf8").catch(() => "");
      sum += (Number(/^VmRSS:\s*(\d+)/m.exec(status)?.[1] ?? 0) * 1024) / chunk.size;
    }
    return sum;
  }

  #service({ service }: ServiceInstance): z.infer<typeof ModelService> {
    const found = this.#services.get(service);
    if (found !== undefined) return found;
    throw new TreadleError(
      "service.failed",
      `service '${service}' is not known here; known are ${[...this.#services.keys()].join(", ") || "none"}`,
    );
  }

  #start(instance: ServiceInstance, service: z.infer<typeof ModelService>, signal: AbortSignal): Running {
    const { start, size } = instance.chunk;
    const devices = this.#acceleratorsOf(start, size).join();
    const [program, ...words] = service.command;
    const fill = (word: string, port: number): string =>
      word
        .replaceAll("{port}", String(port))
        .replaceAll("{dop}", String(instance.dop))
        .replaceAll("{devices}", devices);
    const key = keyOf(instance);
    const running: Running = {
      instance,
      program: new ServerProgram({
        name: `service '${key}'`,
        command: (port) => ({ program: program as string, args: words.map((word) => fill(word, port)) }),
        environment: { ...process.env, CUDA_VISIBLE_DEVICES: devices, ...service.environment },
        probe: (url, limit) => isHealthy(url + service.healthPath, limit),
        probed: service.healthPath,
        startTimeoutMs: service.startTimeoutMs,
        startTimeoutKey: "startTimeoutMs",
        reaper: this.#reaper,
        signal,
      }),
      url: "",
      state: "starting",
      isAsked: false,
    };
    void running.program.ended.then(() => {
      if (this.#running.get(key) === running) this.#running.delete(key);
      if (!running.isAsked && running.state !== "starting") this.#options.onLost?.(instance);
    });
    this.#running.set(key, running);
    return running;
  }

  async #end(running: Running): Promise<void> {
    running.isAsked = true;
    await running.program.end();
  }
}

const keyOf = ({ service, dop, chunk }: ServiceInstance): string =>
  `${service}/${dop}@${chunk.node}:${chunk.start}+${chunk.size}`;

const failed = (instance: ServiceInstance, what: string, remedy: string): TreadleError =>
  new TreadleError("service.failed", `service '${keyOf(instance)}' ${what}; ${remedy}`);

const isHealthy = (url: string, signal: AbortSignal): Promise<boolean> =>
  fetch(url, { signal }).then(
    (answer) => answer.ok,
    () => false,
  );

async function post(url: string, signal?: AbortSignal): Promise<void> {
  const answer = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: "{}",
    signal: timeLimit(callTimeoutMs, signal),
  });
  await answer.arrayBuffer();
  if (!answer.ok) throw new Error(`'${url}' answered ${answer.status}`);
}

/** Of this machine's NVIDIA devices, whatever the node. */
async function nvidiaFreeBytes(_node: number, devices: readonly number[]): Promise<number[]> {
  const query = ["--query-gpu=memory.free", "--format=csv,noheader,nounits", `--id=${devices.join()}`];
  const { stdout } = await promisify(execFile)("nvidia-smi", query).catch((cause: Error) => {
    throw new TreadleError(
      "service.failed",
      `the free memory of devices '${devices.join()}' cannot be measured: ${cause.message.trim()}; install nvidia-smi or give freeBytes`,
      { cause },
    );
  });
  return stdout
    .trim()
    .split("\n")
    .map((mebibytes) => Number(mebibytes) * 2 ** 20);
}
