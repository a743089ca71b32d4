/**
 * The table of the README's threat model: `npx vitest run --config test/vitest.config.ts packages/actions/test/hostile.test.ts`.
 */
import { type AddressInfo, createServer } from "node:net";
import { release } from "node:os";
import { afterAll, describe, expect, test } from "vitest";
import { DockerDriver } from "../src/docker.ts";
import {
  CgroupDriver,
  cgroupDriverLacks,
  diskImagesLack,
  ProcessDriver,
  type SandboxDriver,
  type SandboxOptions,
} from "../src/index.ts";
import { AllowList } from "../src/network/allow-list.ts";
import { startDockerEngine } from "./support/docker-engine.ts";
import { forgeries } from "./support/forgeries.ts";
import { hostileCommands } from "./support/hostile-commands.ts";

const gvisorEngine = await startDockerEngine({ runsc: true });
/** one for both, where it has gVisor */
const engine = typeof gvisorEngine === "string" ? await startDockerEngine() : gvisorEngine;
const listener = createServer((socket) => socket.destroy());
await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", () => resolve()));
const port = (listener.address() as AddressInfo).port;
const table = new Map<string, Record<string, string>>();

afterAll(async () => {
  listener.close();
  if (typeof engine !== "string") await engine.close();
  const names = [...new Set([...table.values()].flatMap((row) => Object.keys(row)))];
  const lines = [...table].map(
    ([attack, row]) => `| ${attack} | ${names.map((name) => row[name] ?? "").join(" | ")} |`,
  );
  console.log(
    [`| a command that | ${names.join(" | ")} |`, `|${" --- |".repeat(names.length + 1)}`, ...lines].join("\n"),
  );
});

const saysOtherKernel = (mark: string): boolean => /^BROKEN \d/.test(mark) && mark !== `BROKEN ${release()}`;

/** which not every machine can hold */
const limitsOfFiles = ["writes a file beyond its limit", "writes many files beyond its limit"];

type Target = {
  readonly name: string;
  readonly make: () => SandboxDriver;
  readonly lacks?: string | undefined;
  readonly named: readonly string[];
  /** of its sandboxes; none when absent */
  readonly network?: SandboxOptions["network"];
  /** what lacks memory or processes may end its sandbox, and what it tells of cores says nothing */
  readonly isGvisor?: boolean;
};
const targets: Target[] = [
  { name: "process", make: () => new ProcessDriver(), named: hostileCommands.map(({ name }) => name) },
  {
    name: "cgroup",
    make: () => new CgroupDriver(),
    // With a way out there is more to attack than without.
    network: [new AllowList(["allowed.invalid"])],
    lacks: cgroupDriverLacks(),
    named: cgroupDriverLacks() === undefined && diskImagesLack() !== undefined ? limitsOfFiles : [],
  },
  {
    name: "docker",
    make: () =>
      new DockerDriver(typeof engine === "string" ? { image: "none" } : { image: engine.image, socket: engine.socket }),
    network: [new AllowList(["allowed.invalid"])],
    lacks: typeof engine === "string" ? engine : undefined,
    // Seen after a while: its sandbox then ends (DK6).
    named: ["writes many files beyond its limit"],
  },
  {
    name: "docker, runsc",
    make: () =>
      typeof gvisorEngine === "string"
        ? new DockerDriver({ image: "none" })
        : new DockerDriver({ image: gvisorEngine.image, socket: gvisorEngine.socket, runtime: "runsc" }),
    lacks: typeof gvisorEngine === "string" ? gvisorEngine : undefined,
    named: ["writes many files beyond its limit"],
    isGvisor: true,
  },
];

describe.each(targets)("$name", ({ name, make, lacks, named, network, isGvisor = false }) => {
  test.skipIf(lacks !== undefined)(
    `holds what it does not name${lacks === undefined ? "" : ` (skipped: ${lacks})`}`,
    async () => {
      const driver = make();
      const diskBytes = driver.diskLacks() === undefined ? 64 * 2 ** 20 : undefined;
      const open = () => driver.open({ memoryBytes: 96 * 2 ** 20, maxProcesses: 50, diskBytes, network });
      let sandbox = await open();
      const before = await open();
      // What cannot run anything holds everything.
      expect((await sandbox.exec({ command: ["echo", "runs"] })).stdout.toString()).toBe("runs\n");
      const hasPython = (await sandbox.exec({ command: ["sh", "-c", "command -v python3"] })).exitCode === 0;
      const note = (attack: string, outcome: string): void => {
        table.set(attack, { ...table.get(attack), [name]: outcome });
      };
      for (const { name: attack, program, reaches, needs } of hostileCommands) {
        if (needs === "python3" && !hasPython) note(attack, "not tried: no Python in the image");
        else if (reaches === "all" && name === "process") note(attack, "not tried: named");
        else if (isGvisor && attack === "takes other cores than it was given") note(attack, "not tried: another test");
        else {
          const command = ["sh", "-c", program.replaceAll("{port}", String(port))] as const;
          const request = { command, cores: [0], timeoutMs: 20_000, graceMs: 0 };
          // In another sandbox first: what it leaves there must not be found. gVisor's kernels share nothing, and take their time.
          if (!isGvisor) await before.exec(request).catch(() => {});
          const ran = await sandbox.exec(request).catch((error: unknown) => {
            if (!isGvisor || sandbox.loss === undefined) throw error;
            return undefined;
          });
          const marks = ran?.stdout.toString().match(/^BROKEN.*$/gm) ?? [];
          // gVisor's kernel is the sandbox's own.
          const isOwnKernels = isGvisor && marks.length > 0 && marks.every(saysOtherKernel);
          const isBroken = marks.length > 0 && !isOwnKernels;
          const held = isOwnKernels ? "held: gVisor answers" : ran === undefined ? "held: its sandbox ends" : "held";
          note(attack, isBroken ? "**not held**" : held);
          if (sandbox.loss !== undefined) sandbox = await open();
          if (!named.includes(attack)) expect([attack, isBroken]).toEqual([attack, false]);
        }
      }
      const shell = (await open()).holdShell();
      let forged = 0;
      let tried = 0;
      for (const { program, reaches, needs } of forgeries) {
        if ((needs === "python3" && !hasPython) || (reaches === "all" && name === "process")) continue;
        const { status, exitCode } = await shell.ask({ program, timeoutMs: 2500 });
        tried++;
        if (status === "exited" && exitCode === 0) forged++;
      }
      note("forges how it ended", `${forged} of ${tried} ways`);
      expect(forged).toBe(0);
      await driver.close();
    },
  );
});
