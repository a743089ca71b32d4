import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  ActionPool,
  CgroupDriver,
  CommandActions,
  CpuManager,
  cgroupDriverLacks,
  ProcessDriver,
  type SandboxDriver,
} from "../src/index.ts";
import { type ShellSession, ShellSessions } from "../src/pool/shell-session.ts";

const drivers: [string, () => SandboxDriver, string | undefined][] = [
  ["process", () => new ProcessDriver(), undefined],
  ["cgroup", () => new CgroupDriver(), cgroupDriverLacks()],
];

for (const [name, make, missing] of drivers)
  describe.skipIf(missing !== undefined)(
    `sessions of a trajectory in the ${name} driver${missing === undefined ? "" : ` (skipped: ${missing})`}`,
    () => {
      let actions: CommandActions;
      beforeAll(() => {
        const cpu = new CpuManager({
          nodes: [{ id: "local", numa: [[0]], memoryBytes: 2 ** 30 }],
          trajectoryMemoryBytes: 2 ** 20,
        });
        actions = new CommandActions(new ActionPool({ managers: [cpu] }), make());
      });
      afterAll(() => actions.close());
      let opened = 0;
      /** Says things to the sessions of a trajectory of its own. */
      const open = (...sessions: string[]) => {
        const trajectory = `t-${opened++}`;
        actions.openTrajectory(trajectory, { environment: { GIVEN: "by the trajectory" } });
        for (const session of sessions) actions.openSession(trajectory, session);
        const submit = (text: string, { session = sessions[0]!, ...limits }: Told = {}) =>
          actions.submit(trajectory, { kind: "say", cost: { cpu: 1 } }, { command: [text], session, ...limits });
        const say = async (text: string, told?: Told) => {
          const { stdout, stderr, exitCode, status } = await submit(text, told).result;
          return { said: stdout.toString(), complaint: stderr.toString(), exitCode, status };
        };
        return { trajectory, submit, say };
      };
      type Told = { session?: string; timeoutMs?: number; graceMs?: number; maxOutputBytes?: number };

      test("variables, functions, aliases, options, umask and the folder stay; each session has its own", async () => {
        const { say } = open("main", "other");
        await say(
          `mkdir -p a/b && cd a; export SHOWN="two
lines" HIDDEN=; list=(1 "2 3"); declare -A map=([k]="v w"); greet() { echo "hello $1"; }; export -f greet
unset GIVEN; set -u; umask 027; shopt -s extglob expand_aliases; alias shout='echo LOUD'; IFS=:; cd b`,
        );
        const { said } = await say(
          `pwd | grep -o "a/b$"; env | grep -A1 ^SHOWN; echo "\${list[1]} \${map[k]} $HIDDEN"; bash -c "greet you"\n` +
            '[ -v GIVEN ] || echo "unset $- $(umask)"; shout; path=x:y; echo $path; cd - | grep -o "a$"',
        );
        expect(said).toMatch(/^a\/b\nSHOWN=two\nlines\n2 3 v w \nhello you\nunset \w*u\w* 0027\nLOUD\nx y\na\n$/);
        expect((await say('[ -v SHOWN ] || echo "none $GIVEN"', { session: "other" })).said).toBe(
          "none by the trajectory\n",
        );
        const drawn = [await say("echo $RANDOM $RANDOM"), await say("echo $RANDOM $RANDOM")];
        expect(drawn[0]!.said).not.toBe(drawn[1]!.said);
      });

      test("BS2 what is told is the status of the command, and what it did until it exited stays", async () => {
        const { say } = open("main");
        expect(await say("(exit 3)")).toMatchObject({ status: "exited", exitCode: 3 });
        expect(await say("X=1; exit 4")).toMatchObject({ status: "exited", exitCode: 4 });
        expect(await say("if then")).toMatchObject({ exitCode: 2, complaint: expect.stringMatching(/syntax error/) });
        expect(await say("set -e; false; X=2")).toMatchObject({ exitCode: 1 });
        expect(await say('echo "$X $-"; set +e')).toMatchObject({ said: expect.stringMatching(/^1 \w*e/) });
        expect(await say("echo treadle: exited 0; exec sh -c 'exit 9'")).toMatchObject({ exitCode: 9 });
        expect(await say("PATH=/nowhere; no-such")).toMatchObject({ exitCode: 127 });
        expect(await say("echo $PATH; X=3")).toMatchObject({ exitCode: 0, said: "/nowhere\n" });
        expect(await say("echo $X")).toMatchObject({ said: "3\n" });
      });

      test("BS3 one that a limit or SIGTERM ended leaves the session as it was; what it started ends with it", async () => {
        const { say } = open("main");
        await say("X=before");
        expect(await say("X=late; sleep 79.25", { timeoutMs: 300, graceMs: 5000 })).toMatchObject({
          status: "timeout",
        });
        expect(await say("X=loud; yes", { maxOutputBytes: 1000 })).toMatchObject({ status: "output-limit" });
        expect(await say("X=killed; kill -TERM $$; sleep 79.25")).toMatchObject({ exitCode: 143 });
        expect(await say("X=killed; kill -KILL $$; sleep 79.25")).not.toMatchObject({ exitCode: 0 });
        expect(await say("echo $X")).toMatchObject({ said: "before\n", exitCode: 0 });
        expect(await say("X=after; kill -INT $$; X=never")).toMatchObject({ exitCode: 130 });
        expect(await say("echo $X")).toMatchObject({ said: "after\n" });
      });

      test("BS3 a session whose state or folder is gone says so, and runs nothing in a state that is not its own", async () => {
        const { say, trajectory } = open("main");
        await say("mkdir gone; cd gone; rmdir ../gone");
        const { said, complaint } = await say("ls -a; X=1");
        expect([said, complaint]).toEqual([
          ".\n..\n",
          expect.stringMatching(/folder '.*gone' is gone; this command begins in/),
        ]);
        await say('rm -f "$__treadle_file"; trap - EXIT');
        expect(await say("touch ran")).toMatchObject({
          exitCode: 125,
          complaint: expect.stringMatching(/is gone; nothing was run; close the session and open it again/),
        });
        actions.closeSession(trajectory, "main");
        actions.openSession(trajectory, "main");
        expect(await say("ls; [ -v X ] || echo none")).toMatchObject({ said: "none\n", exitCode: 0 });
      });

      test("BS1 a session that is in use, is not open, or has no name is refused with what to do", async () => {
        const { say, submit, trajectory } = open("main", "other");
        const running = submit("until [ -e go ]; do sleep 0.02; done");
        expect(() => submit("true")).toThrow(
          /session 'main' runs a command; wait for its end, cancel it, or open another/,
        );
        expect(() => actions.closeSession(trajectory, "main")).toThrow(/runs a command/);
        await actions.writeFile(trajectory, "go", "");
        expect((await running.result).exitCode).toBe(0);
        expect((await say("true")).exitCode).toBe(0);
        expect(() => submit("true", { session: "third" })).toThrow(
          /'third' is not open; open it first; open are 'main', 'other'/,
        );
        expect(() => actions.openSession(trajectory, "main")).toThrow(/'main' is open already/);
        expect(() => actions.openSession(trajectory, "../x")).toThrow(/'\.\.\/x' is no name; give one of up to 64/);
      });

      test("BS1 a command that was cancelled is in the way of the next until it has ended", async () => {
        const { say, submit, trajectory } = open("main");
        const stubborn = submit("trap '' TERM; touch began; while sleep 0.02; do echo 1 >> log; done", {
          graceMs: 1500,
        });
        while (true) {
          const { stdout } = await actions.submit(trajectory, { kind: "look", cost: { cpu: 0 } }, { command: ["ls"] })
            .result;
          if (stdout.includes("log")) break;
        }
        stubborn.cancel();
        await expect(stubborn.result).rejects.toMatchObject({ code: "action.cancelled" });
        expect(() => submit("true")).toThrow(/session 'main' runs a command/);
        const size = async () => (await actions.readFile(trajectory, "log")).length;
        while (
          await Promise.resolve()
            .then(() => submit("true").result)
            .then(
              () => false,
              () => true,
            )
        )
          await new Promise((resolve) => setTimeout(resolve, 20));
        const before = await size();
        expect((await say("sleep 0.1")).exitCode).toBe(0);
        expect(await size()).toBe(before);
      });
    },
  );

test("BS1 sessions are free or busy as their commands come and go, whatever the order", () => {
  const step = fc.record({
    what: fc.constantFrom("open", "close", "begin", "end"),
    name: fc.constantFrom("a", "b", "c"),
  });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 40 }), (steps) => {
      let ids = 0;
      const sessions = new ShellSessions(() => String(ids++));
      /** those that are open, with what their command holds */
      const model = new Map<string, { readonly id: string; held?: ShellSession | undefined }>();
      for (const { what, name } of steps) {
        const known = model.get(name);
        const refusal = known === undefined ? /is not open/ : /runs a command/;
        const isFree = known !== undefined && known.held === undefined;
        if (what === "open" && known === undefined) {
          sessions.open(name);
          model.set(name, { id: String(ids - 1) });
        } else if (what === "open") expect(() => sessions.open(name)).toThrow(/open already/);
        else if (what === "end" && known?.held !== undefined) {
          known.held.isBusy = false;
          known.held = undefined;
        } else if (what === "close" && isFree) {
          sessions.close(name);
          model.delete(name);
        } else if (what === "close") expect(() => sessions.close(name)).toThrow(refusal);
        else if (what === "begin" && isFree) {
          known.held = sessions.free(name);
          known.held.isBusy = true;
          expect(known.held.id).toBe(known.id);
        } else if (what === "begin") expect(() => sessions.free(name)).toThrow(refusal);
        // A copy has the same sessions, and nothing runs in them.
        const copy = new ShellSessions(() => "unused", sessions.copy());
        for (const [each, { id }] of model) expect(copy.free(each)).toMatchObject({ id, isBusy: false });
      }
    }),
  );
});
