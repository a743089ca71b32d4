import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { TreadleError } from "@treadle/contracts";
import { ActorCriticEngine } from "@treadle/engines";
import { wholeOf } from "@treadle/engines/testing";
import { Worker, type WorkerGroup } from "@treadle/runtime";
import { ControlActorConfig, ControlActorWorker } from "@treadle/workers";
import { afterEach, describe, expect, test } from "vitest";
import { isAlive, pidOf, segmentsOf, startCluster, type TestCluster, until } from "../support/cluster.ts";
import { saveState } from "../support/saved-state.ts";
import { BrokenWorker } from "../support/workers/broken.ts";
import { Numbers, ProbeWorker } from "../support/workers/probe.ts";

const open: TestCluster[] = [];
async function start(...args: Parameters<typeof startCluster>): Promise<TestCluster> {
  const started = await startCluster(...args);
  open.push(started);
  return started;
}
afterEach(async () => {
  for (const each of open.splice(0)) {
    await each.close();
    for (const event of each.events) {
      if (event.type === "worker-started" && event.pid !== undefined) expect(isAlive(event.pid)).toBe(false); // S4
    }
    expect(await segmentsOf(each.runId)).toEqual([]);
  }
});
const thrownBy = async (work: PromiseLike<unknown>): Promise<TreadleError> => {
  const error = await work.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(TreadleError);
  return error as TreadleError;
};

test("a process that fails by itself starts again with its call, and says why", async () => {
  const { cluster, events } = await start({ cluster: { devices: 1 } });
  const probe = await cluster.launch(ProbeWorker, {});
  const folder = await mkdtemp(join(tmpdir(), "treadle-fails-"));
  try {
    const [pid] = await probe.goOnAfterFailure(join(folder, "failed"));
    expect(isAlive(pid as number)).toBe(true);
    const died = events.find(({ type }) => type === "worker-died");
    expect(died).toMatchObject({ worker: "probe/0", reason: expect.stringContaining("the engine's process is gone") });
  } finally {
    await rm(folder, { recursive: true });
  }
});

test("a reply that is none is a failure that names the worker, and not an unhandled rejection", async () => {
  const { cluster, failure } = await start({ cluster: { devices: 1 } });
  const probe = await cluster.launch(ProbeWorker, {});
  const error = await thrownBy(probe.answerNonsense());
  expect(error).toMatchObject({ code: "link.protocol", origin: { worker: "probe/0", method: "answerNonsense" } });
  expect(error.message).toContain("worker 'probe/0' answered 'answerNonsense' with what is no reply");
  expect(await failure).toBe(error);
});

test("S3: starting takes as long as it takes, and a take that nobody will serve is named, though nobody was ever called", async () => {
  const supervision = { stallMs: 1500, startTimeoutMs: 60_000 };
  const patient = await start({ cluster: { devices: 1 }, supervision });
  const probe = await patient.cluster.launch(ProbeWorker, { setup: "slow" }); // it needs longer than that
  await probe.whoAmI();
  expect(patient.events.filter(({ type }) => type === "waiting")).toEqual([]);

  const { cluster, failure } = await start({ cluster: { devices: 1 }, supervision });
  await cluster.launch(ProbeWorker, {});
  const taken = cluster.channel("numbers", Numbers).take();
  taken.catch(() => {});
  const error = await failure;
  expect(error.code).toBe("workflow.invalid");
  expect(error.message).toContain("nothing moved");
  expect(error.message).toContain("the workflow waits for items of 'numbers', into which no open call puts");
});

describe("a worker that cannot begin", () => {
  test("a module that does not load says why, once, and nothing waits for it", async () => {
    const { cluster, failure, events } = await start({ cluster: { devices: 1 } });
    const broken = await cluster.launch(BrokenWorker, undefined);
    const error = await thrownBy(broken.work());
    expect(error.code).toBe("worker.load-failed");
    expect(error.message).toContain("this module needs a robot");
    expect(error.origin.worker).toBe("broken/0");
    expect(await failure).toBe(error);
    expect(events.filter(({ type }) => type === "worker-died")).toHaveLength(1);
  });

  test("a class that its module does not export is named", async () => {
    const { cluster } = await start({ cluster: { devices: 1 } });
    class HiddenWorker extends Worker {
      static override readonly module: string = BrokenWorker.module.replace("broken", "probe");
      async work(): Promise<void> {}
    }
    const hidden = await cluster.launch(HiddenWorker, undefined);
    const error = await thrownBy(hidden.work());
    expect(error.code).toBe("worker.load-failed");
    expect(error.message).toContain("does not export a worker class 'HiddenWorker'");
  });

  test("a class that nobody can find, and a module outside of the project, are refused before a process starts", async () => {
    const { cluster } = await start({ cluster: { devices: 1 } });
    class LocalWorker extends Worker {
      async work(): Promise<void> {}
    }
    expect(() => cluster.launch(LocalWorker, undefined)).toThrow("export it from the workflow's module");
    class OutsideWorker extends Worker {
      static override readonly module: string = pathToFileURL("/etc/hostname").href;
      async work(): Promise<void> {}
    }
    const outside = await cluster.launch(OutsideWorker, undefined);
    const error = await thrownBy(outside.work());
    expect(error).toMatchObject({ code: "worker.load-failed" });
    expect(error.message).toContain("outside of the project root");
  });

  test("S1: a setup that throws fails the run with its cause, once", async () => {
    const { cluster, events } = await start({ cluster: { devices: 1 } });
    const probe = await cluster.launch(ProbeWorker, { setup: "throw" });
    const error = await thrownBy(probe.whoAmI());
    expect(error.code).toBe("worker.setup-failed");
    expect(error.message).toContain("no engine here");
    const causes: string[] = [];
    for (let cause = error.cause as Error | undefined; cause; cause = cause.cause as Error | undefined)
      causes.push(cause.message);
    expect(causes).toEqual(["no engine here", "the driver is missing"]);
    expect(events.filter(({ type }) => type === "worker-died")).toHaveLength(1);
  });

  test("a state with numbers that are none is refused by file and tensor, and trains nothing", async () => {
    const { cluster, folder, events } = await start({ cluster: { devices: 1 } });
    const size = { observationSize: 1, actionSize: 1, hidden: [2] };
    const engine = await ActorCriticEngine.create(size);
    const state = await wholeOf(engine.save());
    await engine.close();
    const weights = state.length - 32 - 12 * engine.numParameters;
    new DataView(state.buffer).setFloat32(weights, Number.NaN, true);
    state.set(createHash("sha256").update(state.subarray(0, -32)).digest(), state.length - 32);
    const path = join(folder, "actor.1");
    await saveState(path, "actor", [{ engine: state }]);
    cluster.restoreStates({ actor: path });
    const step = { epochs: 1, minibatches: 1, learningRate: 0.1, maxGradNorm: 1, discount: 1, lambda: 1 };
    const loss = { clip: 0.2, valueCoefficient: 1, entropyCoefficient: 0 };
    const config = ControlActorConfig.parse({ model: size, ...step, ...loss });
    const actor = await cluster.launch(ControlActorWorker, config, { name: "actor" });
    const error = await thrownBy(actor.weights());
    expect(error.code).toBe("worker.setup-failed");
    expect(error.message).toContain(`'actor/0' could not be loaded from the state '${path}'`);
    expect(error.message).toContain(
      "its weights of 'actor.0.matrix' have 'NaN' at '0' where finite numbers are allowed",
    );
    expect(events.filter(({ type }) => type === "worker-died")).toHaveLength(1);
  });

  test("a setup that never ends has a deadline; and a run that is closed meanwhile does not wait for it", async () => {
    const slow = await start({
      cluster: { devices: 1 },
      supervision: { startTimeoutMs: 2000, maxRestarts: 0 },
    });
    const error = await thrownBy((await slow.cluster.launch(ProbeWorker, { setup: "hang" })).whoAmI());
    expect(error.code).toBe("worker.gave-up");
    expect(error.message).toContain("supervision.startTimeoutMs");

    const closed = await start({ cluster: { devices: 1 }, supervision: { stopGraceMs: 500 } });
    const call = thrownBy((await closed.cluster.launch(ProbeWorker, { setup: "hang" })).whoAmI());
    await until(() => closed.events.some(({ type }) => type === "phase"), "processes to start");
    await new Promise((resolve) => setTimeout(resolve, 300));
    await closed.cluster.close();
    expect((await call).code).toBe("run.stopped");
  });
});

describe("a worker that ends in the middle", () => {
  test("its memory limit ends it with the reason, and nothing is tried again", async () => {
    const { cluster } = await start({ cluster: { devices: 1 } });
    const probe = await cluster.launch(ProbeWorker, {}, { memoryLimitMiB: 250 });
    await probe.whoAmI();
    const error = await thrownBy(probe.hog(600));
    expect(error.code).toBe("device.out-of-memory");
    expect(error.message).toMatch(/worker 'probe\/0' used '\d+' MiB of memory, more than its limit of 250 MiB/);
  });

  test("S1: one that always dies is given up, with how it ended and its last words", async () => {
    const { cluster, failure, events } = await start({
      cluster: { devices: 1 },
      supervision: { maxRestarts: 1 },
    });
    const probe = await cluster.launch(ProbeWorker, {});
    const error = await thrownBy(probe.die(7));
    expect(error.code).toBe("worker.gave-up");
    expect(error.message).toContain("ended with exit code 7");
    expect(error.origin).toMatchObject({ worker: "probe/0" });
    expect(error.origin.logTail?.join("\n")).toContain("my last words");
    expect(await failure).toBe(error);
    expect(events.filter(({ type }) => type === "worker-died")).toHaveLength(2);
    expect(cluster.restarts).toBe(1);
  });

  test.each([
    ["in its process group", false],
    ["in a session of its own", true],
  ])("NA1: a process that it had started %s neither hides its death nor outlives it", async (_, detached) => {
    const { cluster, events } = await start({ cluster: { devices: 1 } });
    const probe = await cluster.launch(ProbeWorker, {});
    const child = (await probe.leaveChild(detached).first()) as number;
    expect(isAlive(child)).toBe(true);
    const pid = pidOf(events, "probe/0");
    process.kill(pid, "SIGKILL");
    await until(() => !isAlive(child), "the child to be ended", 30_000);
    const [again] = await probe.whoAmI();
    expect(again?.pid).not.toBe(pid);
    const death = events.find((event) => event.type === "worker-died");
    expect(death).toMatchObject({ worker: "probe/0", signal: "SIGKILL" });
    expect(death?.reason).toContain("was ended by SIGKILL");
  });

  test("NA3: its death is told, and the run ends, while a process that nobody can find holds its pipes", async () => {
    const { cluster, events } = await start({ cluster: { devices: 1 } });
    const probe = await cluster.launch(ProbeWorker, {});
    const leave = 'for g in "$TREADLE_WORKER_GROUP"/..; do echo $$ > $g/cgroup.procs; done; exec env -i sleep 600';
    const child = (await probe.leaveChild(true, leave).first()) as number;
    try {
      await until(() => readFileSync(`/proc/${child}/comm`, "utf8").trim() === "sleep", "the child to have escaped");
      const pid = pidOf(events, "probe/0");
      process.kill(pid, "SIGKILL");
      // Nobody closes its pipes: the agent waits for its last lines a second, and no longer.
      const death = await until(
        () => events.find(({ type }) => type === "worker-died"),
        "its death to be told",
        15_000,
      );
      expect(death).toMatchObject({ worker: "probe/0", signal: "SIGKILL" });
      const [again] = await probe.whoAmI();
      expect(again?.pid).not.toBe(pid);
      await cluster.close();
      expect(isAlive(child)).toBe(true);
    } finally {
      process.kill(child, "SIGKILL");
    }
  });
});

describe("a call that cannot be", () => {
  test("an answer, or an argument, that is too large for a frame fails that call and says how large it was", async () => {
    const { cluster } = await start({ cluster: { devices: 1 } });
    const probe = await cluster.launch(ProbeWorker, {});
    const error = await thrownBy(probe.big(65 * 2 ** 20));
    expect(error.code).toBe("link.frame-too-large");
    expect(error.message).toMatch(/takes '\d+' bytes/);
    const argument = await thrownBy(probe.wait("x".repeat(65 * 2 ** 20) as unknown as number[]));
    expect(argument.code).toBe("link.frame-too-large");
  });

  test("arguments that cannot leave their process, and channels passed whole, are refused", async () => {
    const { cluster } = await start({ cluster: { devices: 1 } });
    const probe = await cluster.launch(ProbeWorker, {});
    const error = await thrownBy(probe.wait([() => {}] as unknown as number[]));
    expect(error.code).toBe("link.unsupported-value");
    expect(() => cluster.launch(ProbeWorker, {})).toThrow("two components are called");
  });

  test("two components of one name, and none at all", async () => {
    const { cluster } = await start({ cluster: { devices: 1 } });
    expect(() => cluster.place()).toThrow("launches no component");
    await cluster.launch(ProbeWorker, {});
    expect(() => cluster.launch(ProbeWorker, {})).toThrow("two components are called 'probe'");
  });

  test("after the end nothing is called any more", async () => {
    const { cluster } = await start({ cluster: { devices: 1 } });
    const probe: WorkerGroup<ProbeWorker> = await cluster.launch(ProbeWorker, {});
    await cluster.close();
    expect(() => probe.whoAmI()).toThrow(expect.objectContaining({ code: "run.stopped" }));
  });
});
