import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { Supervisor } from "../src/drivers/supervisor.ts";
import { eventually } from "./support/processes.ts";

test("SU4 a shell that ends before it has read its program ends its supervisor, and the program is not run", async () => {
  const folder = await mkdtemp(join(tmpdir(), "treadle-supervisor-"));
  const [pidFile, mark] = [join(folder, "pid"), join(folder, "mark")];
  let numKills = 0;
  const supervisor = new Supervisor({
    beginning: ":",
    joining: (command) => ["-c", `echo $$ > ${pidFile}; exec "$@"`, "joining", ...command],
    entering: ["/bin/sh", "-c", "exit 5"],
    path: process.env["PATH"] ?? "",
    group: {
      numTasks: () => 1,
      kill: async () => {
        numKills++;
        process.kill(-Number(await readFile(pidFile, "utf8")), "SIGKILL");
      },
    },
  });
  expect(await eventually(() => numKills > 0)).toBe(true);
  expect(supervisor.hasEnded).toBe(true);
  const { exited } = supervisor.host(`touch ${mark}`).start();
  expect(await exited.catch(({ code }) => code)).not.toEqual({ code: 0, signal: null });
  expect([numKills, existsSync(mark)]).toEqual([1, false]);
  await rm(folder, { recursive: true });
});
