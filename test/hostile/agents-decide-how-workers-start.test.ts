/**
 * Whoever may publish commands asks a node agent for more than modules of its project. What each attack would leave behind
 * is looked for, besides the refusal.
 */
import { existsSync, readdirSync } from "node:fs";
import { mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { type ControlPlane, commands, type Member, TreadleError, WorkerPermissions } from "@treadle/contracts";
import { localControlPlanes } from "@treadle/transport";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { ProjectCode } from "../../packages/runtime/src/node/code-hash.ts";
import { Descendants } from "../../packages/runtime/src/node/descendants.ts";
import type { NodeService } from "../../packages/runtime/src/node/node-service.ts";
import { checkWorkerStart } from "../../packages/runtime/src/node/worker-permissions.ts";
import { arbitraryOf } from "../fuzz/arbitrary-of.ts";
import { anyValue, damagedValue } from "../fuzz/damage.ts";
import { startNodeService } from "../support/node-service.ts";
import { type SpawnChanges, spawnCommand } from "../support/spawn-command.ts";

const codeHash = async (folder: string): Promise<string> => (await new ProjectCode(folder).current()).hash;

let root: string;
let plane: ControlPlane;
let service: NodeService;
const mark = (): string => join(root, "was-run");

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-h-"));
  const project = join(root, "project");
  await mkdir(join(project, "node_modules"), { recursive: true });
  await writeFile(join(project, "worker.ts"), "export const nothing = 1;\n");
  await mkdir(join(root, "outside"));
  for (const path of ["outside.mjs", "outside/innocent.mjs"])
    await writeFile(join(root, path), `import { writeFileSync } from "node:fs"; writeFileSync("${mark()}", "");\n`);
  await writeFile(join(root, "preload.cjs"), `require("node:fs").writeFileSync("${mark()}", "");\n`);
  await symlink(join(root, "outside"), join(project, "linked"));
  const planes = localControlPlanes();
  plane = planes.connect();
  service = await startNodeService(planes.connect(), project, 1000);
  await plane.announce("run", "run-1", {}, () => undefined);
});
afterEach(async () => {
  await service.close("the test is over");
  await plane.close();
  await rm(root, { recursive: true, force: true });
});

async function spawn(changes: SpawnChanges): Promise<string> {
  const project = join(root, "project");
  const command = spawnCommand(project, await codeHash(project), changes); // anybody may ask for the hash
  const [node] = plane.members("node");
  return plane.command(node as Member, "spawn", command, { timeoutMs: 30_000 }).then(
    async () => {
      // Time enough for what was started to do its harm.
      for (let tries = 0; tries < 15 && !existsSync(mark()); tries++) await new Promise((go) => setTimeout(go, 100));
      return existsSync(mark()) ? "was run" : "started";
    },
    (error: TreadleError) => (existsSync(mark()) ? "was run" : error.code),
  );
}

describe("NA2, NA4: an agent that allows nothing refuses what would run other code", () => {
  const script = () => `require("node:fs").writeFileSync("${mark()}", "")`;
  const attacks: readonly [string, () => SpawnChanges, string][] = [
    [
      "the shell as interpreter",
      () => ({ over: { interpreter: { command: "/bin/sh", flags: ["-c", `touch ${mark()}; exit 0`] } } }),
      "node.forbidden",
    ],
    [
      "Node with a script of the attacker's",
      () => ({ over: { interpreter: { command: process.execPath, flags: ["-e", script()] } } }),
      "node.forbidden",
    ],
    [
      "NODE_OPTIONS",
      () => ({ over: { env: { NODE_OPTIONS: `--require ${join(root, "preload.cjs")}` } } }),
      "node.forbidden",
    ],
    ["PATH", () => ({ over: { env: { PATH: root } } }), "node.forbidden"],
    ["LD_PRELOAD", () => ({ over: { env: { LD_PRELOAD: join(root, "evil.so") } } }), "node.forbidden"],
    ["PYTHONPATH", () => ({ over: { env: { PYTHONPATH: root } } }), "node.forbidden"],
    ["a module beside the project", () => ({ over: { modulePath: "../outside.mjs" } }), "link.protocol"],
    ["a module by its absolute path", () => ({ over: { modulePath: join(root, "outside.mjs") } }), "link.protocol"],
    ["a link out of the project", () => ({ over: { modulePath: "linked/innocent.mjs" } }), "worker.load-failed"],
    ["a component that leaves the folder", () => ({ boot: { component: "../../x" } }), "link.protocol"],
    ["a run that leaves the folder", () => ({ over: { run: "../x" }, boot: { runId: "../x" } }), "link.protocol"],
    ["a run that is another", () => ({ boot: { runId: "run-2" } }), "node.forbidden"],
    ["shared memory of others", () => ({ over: { segmentPrefix: "treadle-" } }), "link.protocol"],
    ["shared memory of another run", () => ({ over: { segmentPrefix: "treadle-run-2.1-" } }), "node.forbidden"],
    [
      "shared memory of a run whose name begins with its own",
      () => ({ over: { segmentPrefix: "treadle-run-1-2.1-" } }),
      "node.forbidden",
    ],
    ["shared memory outside of its folder", () => ({ over: { segmentPrefix: "treadle-../../x" } }), "link.protocol"],
  ];
  test.each(attacks)("%s", async (_, attack, refusal) => {
    expect(await spawn(attack())).toBe(refusal);
    expect(existsSync(mark())).toBe(false);
  });

  test("a link to a file outside that lies there already", async () => {
    const hash = await codeHash(join(root, "project"));
    await symlink(join(root, "outside.mjs"), join(root, "project/innocent.mjs"));
    const [node] = plane.members("node");
    const command = spawnCommand(join(root, "project"), hash, { over: { modulePath: "innocent.mjs" } });
    await expect(plane.command(node as Member, "spawn", command, { timeoutMs: 30_000 })).rejects.toMatchObject({
      code: "node.unavailable",
      message: expect.stringContaining("'innocent.mjs' leads to"),
    });
    expect(existsSync(mark())).toBe(false);
  });

  test("and starts what is asked for properly", async () => {
    expect(await spawn({ over: { env: { CUDA_VISIBLE_DEVICES: "", OMP_NUM_THREADS: "2" } } })).toBe("started");
  });
});

const numRuns = Number(process.env["FUZZ_RUNS"] ?? 60);
/** What an agent answers to what it does not do. */
const refusals = ["call.unknown-method", "link.protocol", "node.forbidden", "node.unavailable", "worker.load-failed"];

describe("whatever a command says", () => {
  const asJson = (value: unknown): unknown => {
    try {
      return JSON.parse(JSON.stringify(value) ?? "null");
    } catch {
      return null; // no sender could have sent it
    }
  };
  const bodies = new Map<string, fc.Arbitrary<unknown>>(
    Object.entries(commands.node).map(([verb, { request }]) => {
      const sound = arbitraryOf(request);
      return [verb, fc.oneof(sound, anyValue.random, { arbitrary: damagedValue(sound), weight: 3 }).map(asJson)];
    }),
  );
  // Those that are small as JSON: nothing deeper leaves a sender.
  const hostile = anyValue.hostile.filter(([name]) => /many|long|holes/.test(name)).map(([, make]) => asJson(make()));
  const verbs = [...Object.keys(commands.node), "exited", "toString", "__proto__", ""];

  test.each(verbs)("'%s' is answered, or refused as an agent refuses, and the agent goes on", async (verb) => {
    const [node] = plane.members("node");
    const ask = async (body: unknown) => {
      const code = await plane.command(node as Member, verb, body, { timeoutMs: 60_000 }).then(
        () => "answered",
        (error: TreadleError) => error.code,
      );
      expect(["answered", ...refusals]).toContain(code);
    };
    await fc.assert(fc.asyncProperty(bodies.get(verb) ?? fc.jsonValue(), ask), { numRuns });
    for (const body of hostile) await ask(body);
    expect(({} as { polluted?: boolean }).polluted).toBeUndefined();
    expect(await plane.command(node as Member, "ping", {}, { timeoutMs: 60_000 })).toBeNull();
    expect(existsSync(mark())).toBe(false);
  });
});

test("whatever a command for a run that is there says of a worker, one is started or refused, and nothing of it stays", async () => {
  const project = join(root, "project");
  const [node] = plane.members("node");
  const { boot } = spawnCommand(project, await codeHash(project)) as { boot: { token: string } };
  const name = fc.constantFrom("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "UV_THREADPOOL_SIZE");
  const value = fc.oneof(fc.string({ unit: "binary" }), fc.constantFrom("", "1\0", "1\n2", "é".repeat(90_000)));
  // All but what agents compare: that is drawn above.
  const drawn = fc.record({ sound: arbitraryOf(commands.node.spawn.request), env: fc.dictionary(name, value) });
  let next = 0;
  const answers = new Map<string, number>();
  await fc.assert(
    fc.asyncProperty(drawn, async ({ sound, env }) => {
      const given = sound as { boot: object; memoryLimitMiB?: number };
      const own = {
        ...boot,
        ...given.boot,
        runId: "run-1",
        component: "maker",
        token: boot.token,
        incarnation: next++,
        devices: [],
      };
      const memory = given.memoryLimitMiB === undefined ? {} : { memoryLimitMiB: given.memoryLimitMiB };
      const command = spawnCommand(project, await codeHash(project), { over: { env, ...memory }, boot: own });
      const code = await plane.command(node as Member, "spawn", command, { timeoutMs: 60_000 }).then(
        () => "started",
        (error: TreadleError) => error.code,
      );
      expect(["started", ...refusals]).toContain(code);
      answers.set(code, (answers.get(code) ?? 0) + 1);
    }),
    { numRuns: Math.ceil(numRuns / 2) },
  );
  expect([...answers.keys()]).toContain("started");
  await plane.command(node as Member, "release", { run: "run-1", session: 1 }, { timeoutMs: 60_000 });
  const group = new Descendants().environment["TREADLE_WORKER_GROUP"];
  const groups = group === undefined ? [] : readdirSync(dirname(group));
  const left = groups.filter((each) => each.startsWith(`treadle-worker-${process.pid}-`));
  expect(left).toEqual(group === undefined ? [] : [basename(group)]);
});

describe("NA4: what an agent allows", () => {
  const code = (act: () => void): string | undefined => {
    try {
      act();
      return undefined;
    } catch (error) {
      return error instanceof TreadleError ? error.code : String(error);
    }
  };
  const loads = fc.oneof(
    fc.constantFrom("PATH", "LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "NODE_OPTIONS", "NODE_PATH", "PYTHONSTARTUP"),
    fc.stringMatching(/^(LD_|NODE_|PYTHON|DYLD_)[A-Z_]{1,12}$/),
  );

  test("a variable by which code is loaded is refused even where the agent was told to allow it", () => {
    fc.assert(
      fc.property(loads, fc.string(), (name, value) => {
        const permissions = WorkerPermissions.parse({ env: [name] });
        expect(code(() => checkWorkerStart({ env: { [name]: value } }, permissions, "a"))).toBe("node.forbidden");
      }),
    );
  });

  test("exactly what is named is allowed: no part of it, nothing that contains it, no other order of words", () => {
    const word = fc.stringMatching(/^[a-z]{2,8}$/);
    fc.assert(
      fc.property(fc.uniqueArray(word, { minLength: 3, maxLength: 6 }), ([env = "", flag = "", tool = "", ...rest]) => {
        const [other = `${env}x`] = rest;
        const permissions = WorkerPermissions.parse({
          env: [env],
          flags: [`--${flag}`],
          interpreters: [`/bin/${tool}`],
        });
        const check = (names: string[], command: string, flags: string[]) =>
          code(() =>
            checkWorkerStart(
              { env: Object.fromEntries(names.map((name) => [name, "1"])), interpreter: { command, flags } },
              permissions,
              "a",
            ),
          );
        expect(check([env], `/bin/${tool}`, [`--${flag}`])).toBeUndefined();
        expect(check([env, other], `/bin/${tool}`, [])).toBe("node.forbidden");
        expect(check([`${env}x`], `/bin/${tool}`, [])).toBe("node.forbidden");
        expect(check([], `/bin/${other}`, [])).toBe("node.forbidden");
        expect(check([], `/bin/../bin/${tool}`, [])).toBe("node.forbidden");
        expect(check([], `/bin/${tool}`, [`--${flag}=1`])).toBe("node.forbidden");
        expect(check([], `/bin/${tool}`, [`--${flag}`, other])).toBe("node.forbidden");
      }),
    );
  });
});
