import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import { systemClock } from "@treadle/transport";
import { afterEach, describe, expect, test } from "vitest";
import {
  ActionPool,
  GpuManager,
  type ModelService,
  ProcessServices,
  type ServiceInstance,
  servicePreparation,
} from "../src/index.ts";
import { eventually, processesWith } from "./support/processes.ts";

const server = fileURLToPath(new URL("support/model-server.mjs", import.meta.url));
const instance: ServiceInstance = { service: "judge", dop: 2, chunk: { node: 0, start: 2, size: 2 } };
const never = new AbortController().signal;

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

function host(own: Partial<ModelService> = {}, mode = "", lost: ServiceInstance[] = []) {
  const command = [process.execPath, server, "{port}", "100", mode];
  const services = new ProcessServices({
    services: { judge: { command, ...own }, other: { command, ...own } },
    freeBytes: async (_, devices) => devices.map(() => 100),
    onLost: (one) => lost.push(one),
  });
  cleanups.push(() => services.close());
  return services;
}

type Seen = { calls: string[]; pid: number; devices: string };
const ask = async (services: ProcessServices): Promise<Seen> =>
  (await (await fetch(`${services.url(instance)}/calls`)).json()) as Seen;
const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
};

describe("model services as processes", () => {
  test("SV1 SV2 a service is restored when it answers, on its devices, and is gone after its eviction", async () => {
    const services = host();
    expect(() => services.url(instance)).toThrow(/is not restored/);
    expect(await services.restore(instance, never)).toBe("started");
    const { pid, devices } = await ask(services);
    expect(devices).toBe("2,3");
    expect(await services.evict(instance)).toBe("ended");
    expect(isAlive(pid)).toBe(false);
    expect(await services.restore(instance, never)).toBe("started");
    expect((await ask(services)).pid).not.toBe(pid);
  });

  test.each([
    ["sglang", ["POST /release_memory_occupation", "POST /resume_memory_occupation"]],
    ["vllm", ["POST /sleep?level=1", "POST /wake_up"]],
  ] as const)("an engine of %s lets go of its memory and takes it back by its endpoints", async (memory, calls) => {
    const services = host({ memory });
    await services.restore(instance, never);
    const { pid } = await ask(services);
    expect(await services.evict(instance)).toBe("asleep");
    expect(() => services.url(instance)).toThrow(/is not restored/);
    expect(isAlive(pid)).toBe(true);
    expect(await services.restore(instance, never)).toBe("woken");
    expect(await ask(services)).toMatchObject({ pid, calls });
  });

  test("SV2 an engine that cannot be woken is replaced", async () => {
    const services = host({ memory: "sglang" }, "refuses-to-wake");
    await services.restore(instance, never);
    const { pid } = await ask(services);
    await services.evict(instance);
    expect(await services.restore(instance, never)).toBe("otherwise");
    expect((await ask(services)).pid).not.toBe(pid);
    expect(isAlive(pid)).toBe(false);
  });

  test("one that hangs under a request is ended, and lost; one that is well is left", async () => {
    const lost: ServiceInstance[] = [];
    const services = host({}, "", lost);
    await services.restore(instance, never);
    const { pid } = await ask(services);
    await services.endIfDead(instance, 5000);
    expect([isAlive(pid), lost]).toEqual([true, []]);
    process.kill(pid, "SIGSTOP");
    await services.endIfDead(instance, 300);
    expect([isAlive(pid), lost]).toEqual([false, [instance]]);
    await services.restore(instance, never);
    expect((await ask(services)).pid).not.toBe(pid);
  });

  test("a service that ends, does not answer, or is not known fails with what it said", async () => {
    const ends = host({ command: ["sh", "-c", "echo no such model >&2; exit 1"] });
    await expect(ends.restore(instance, never)).rejects.toMatchObject({
      code: "service.failed",
      message: expect.stringMatching(/judge\/2@0:2\+2.*no such model/),
    });
    // Whoever accepts connections and says nothing is no better.
    const listens = `require("node:net").createServer(() => {}).listen(Number(process.argv[1]), "127.0.0.1")`;
    const silent = { command: [process.execPath, "-e", listens, "{port}"] };
    const deaf = host({ ...silent, startTimeoutMs: 1500 });
    await expect(deaf.restore(instance, never)).rejects.toThrow(/did not answer at \/health within 1500 ms/);
    const left = new AbortController();
    const leaving = host(silent).restore(instance, left.signal);
    setTimeout(() => left.abort(new Error("its caller went away")), 1000);
    await expect(leaving).rejects.toThrow("its caller went away");
    const mute = host({ command: ["sleep", "75.25"], startTimeoutMs: 200 });
    await expect(mute.restore(instance, never)).rejects.toThrow(/did not answer at \/health within 200 ms/);
    const missing = host({ command: ["no-such-program"] });
    await expect(missing.restore(instance, never)).rejects.toMatchObject({ code: "service.failed" });
    await expect(missing.restore({ ...instance, service: "none" }, never)).rejects.toThrow(/known are judge, other/);
  });

  test.each(["awake", "asleep"])("one that dies by itself is told, %s", async (state) => {
    const lost: ServiceInstance[] = [];
    const services = host({ memory: "vllm" }, "", lost);
    await services.restore(instance, never);
    const { pid } = await ask(services);
    if (state === "asleep") await services.evict(instance);
    process.kill(pid, "SIGKILL");
    while (lost.length === 0) await new Promise((resolve) => setTimeout(resolve, 10));
    expect(lost).toEqual([instance]);
  });

  test("after a request broke, a service that answers stays, and one that is dead is gone before anybody else asks it", async () => {
    const lost: ServiceInstance[] = [];
    const services = host({}, "", lost);
    await services.restore(instance, never);
    await services.endIfDead(instance);
    const { pid } = await ask(services);
    expect(lost).toEqual([]);
    process.kill(pid, "SIGKILL");
    await services.endIfDead(instance);
    expect(() => services.url(instance)).toThrow(/is not restored/);
    expect(lost).toContainEqual(instance);
    expect(await services.restore(instance, never)).toBe("started");
  });

  test("SV3 after 'close' no service is left, and neither is one of a process that was killed", async () => {
    const services = host();
    const other = { ...instance, service: "other" };
    await Promise.all([services.restore(instance, never), services.restore(other, never)]);
    const { pid } = await ask(services);
    await services.close();
    expect(isAlive(pid)).toBe(false);
    expect(() => services.url(other)).toThrow(/is not restored/);
    const program = fileURLToPath(new URL("support/holds-a-service.ts", import.meta.url));
    const holder = spawn(process.execPath, ["--import", "tsx", "--conditions=source", program], { stdio: "ignore" });
    const running = () => processesWith("76.25").length;
    expect(await eventually(() => running() >= 2)).toBe(true);
    holder.kill("SIGKILL");
    expect(await eventually(() => running() === 0)).toBe(true);
  });

  test("an action on devices finds its service restored, and another's evicted first", async () => {
    const manager = new GpuManager({
      nodes: 1,
      devicesPerNode: 1,
      memoryBytesPerDevice: 100,
      services: Object.fromEntries(
        ["judge", "other"].map((name) => [name, [{ dop: 1, memoryBytes: 80, restoreSeconds: 1 }]]),
      ),
    });
    const services = host();
    const pool = new ActionPool({ managers: [manager], prepare: servicePreparation(manager, services, systemClock) });
    cleanups.push(() => pool.close());
    const one = (service: string) => ({ service, dop: 1, chunk: { node: 0, start: 0, size: 1 } });
    const call = (service: string) =>
      pool.submit({ kind: service, cost: { gpu: 1 }, service }, async () => {
        const { status } = await fetch(`${services.url(one(service))}/generate`);
        return status;
      }).result;
    expect(await Promise.all([call("judge"), call("other")])).toEqual([200, 200]);
    expect(manager.residents()).toEqual([one("other")]);
    expect(() => services.url(one("judge"))).toThrow(/is not restored/);
  });
});
