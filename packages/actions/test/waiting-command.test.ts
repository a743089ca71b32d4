import { Readable } from "node:stream";
import { text } from "node:stream/consumers";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { toldOutput, WaitingCommand } from "../src/drivers/waiting-command.ts";

const heard = async (chunks: readonly string[]) => {
  const { stdout, begins } = toldOutput(Readable.from(chunks.map((chunk) => Buffer.from(chunk))));
  return { output: await text(stdout), begins: await begins };
};

describe("the word of a shell that was told what to become", () => {
  test("is taken off what the command prints, however it comes", () =>
    fc.assert(
      fc.asyncProperty(fc.string({ unit: "grapheme-ascii" }), fc.array(fc.nat(12)), async (printed, cuts) => {
        let rest = `told\n${printed}`;
        const chunks = [...cuts, rest.length].map((length) => {
          const chunk = rest.slice(0, length);
          rest = rest.slice(length);
          return chunk;
        });
        expect(await heard([...chunks.filter(Boolean), rest].filter(Boolean))).toEqual({
          output: printed,
          begins: true,
        });
      }),
    ));

  test("that does not come means that nothing has begun, and loses nothing", async () => {
    expect(await heard([])).toEqual({ output: "", begins: false });
    expect(await heard(["tol"])).toEqual({ output: "tol", begins: false });
    expect(await heard(["some", "thing else\n"])).toEqual({ output: "something else\n", begins: true });
  });
});

describe("what waits for a command", () => {
  const result = (exitCode: number, status: "exited" | "timeout" = "exited") => ({
    status,
    exitCode,
    stdout: Buffer.alloc(0),
    stderr: Buffer.alloc(0),
    seconds: 0,
  });
  const waiting = () => {
    let entered = 0;
    const options = { isAlive: () => true, end: async () => {}, mayWait: () => true };
    return new WaitingCommand<number>({ ...options, enter: async () => ++entered });
  };

  test("CG4 DK5 is replaced once where it had ended before it was told, and only then", async () => {
    const commands = waiting();
    const told: number[] = [];
    const run = async (entered: number) => {
      told.push(entered);
      return { result: result(entered), hasBegun: false };
    };
    // The first has not waited: its end says why it does not begin.
    expect((await commands.use(run)).exitCode).toBe(1);
    expect((await commands.use(run)).exitCode).toBe(3);
    expect(told).toEqual([1, 2, 3]);
    const late = await commands.use(async () => ({ result: result(9, "timeout"), hasBegun: false }));
    expect(late.status).toBe("timeout");
  });

  test("DK8 what commands have left is cleared once none runs, and nobody enters before it is", async () => {
    const seen: string[] = [];
    let cleared = (): void => {};
    let entered = 0;
    const commands = new WaitingCommand<number>({
      isAlive: () => true,
      end: async () => {},
      mayWait: () => false,
      enter: async () => {
        seen.push("enters");
        return ++entered;
      },
      clear: () =>
        new Promise((resolve) => {
          seen.push("clears");
          cleared = () => {
            seen.push("cleared");
            resolve();
          };
        }),
    });
    const ends: (() => void)[] = [];
    const use = () =>
      commands.use(async () => {
        await new Promise<void>((resolve) => ends.push(resolve));
        return { result: result(0), hasBegun: true };
      });
    const turn = () => new Promise((resolve) => setImmediate(resolve));
    const [first, second] = [use(), use()];
    await turn();
    ends[0]!();
    await first;
    expect(await commands.alone(async () => {})).toBe(true);
    ends[1]!();
    await turn();
    const third = use();
    await turn();
    expect(seen).toEqual(["enters", "enters", "clears"]);
    cleared();
    await second;
    await turn();
    expect(seen).toEqual(["enters", "enters", "clears", "cleared", "enters"]);
    ends[2]!();
    await turn();
    cleared();
    await third;
  });

  test("DK8 one beside which others run is not alone", async () => {
    const commands = waiting();
    let isAlone: boolean | undefined;
    let end = (): void => {};
    const beside = commands.use(async () => {
      await new Promise<void>((resolve) => {
        end = resolve;
      });
      return { result: result(0), hasBegun: true };
    });
    await commands.use(async () => {
      isAlone = await commands.alone(async () => {});
      return { result: result(0), hasBegun: true };
    });
    expect(isAlone).toBe(false);
    end();
    await beside;
  });
});
