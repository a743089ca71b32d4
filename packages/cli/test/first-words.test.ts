/** What somebody reads who types 'treadle' for the first time, or mistypes a command. */
import { expect, test } from "vitest";
import { createProgram } from "../src/program.ts";

async function said(args: readonly string[]): Promise<string> {
  const program = await createProgram(args[0]);
  let text = "";
  const writeOut = (written: string) => {
    text += written;
  };
  program.configureOutput({ writeOut, writeErr: writeOut });
  await expect(program.parseAsync(["node", "treadle", ...args])).rejects.toMatchObject({ name: "CommanderError" });
  return text;
}

test("alone it shows the three commands to begin with", async () => {
  const text = await said([]);
  const begin = text.slice(text.indexOf("Begin with:")).split("\n").slice(1, 4);
  expect(begin.map((line) => line.trim().split(/\s{2,}/))).toEqual([
    ["treadle init <folder>", expect.stringContaining("writes a project")],
    ["treadle run <workflow>", expect.stringContaining("runs it")],
    ["treadle dashboard", expect.stringContaining("in a browser")],
  ]);
});

test("a mistyped command suggests the one that was meant, and where all of them are", async () => {
  const text = await said(["rum"]);
  expect(text).toContain("unknown command 'rum'");
  expect(text).toContain("(Did you mean run?)");
  expect(text).toContain("'treadle --help' lists the commands");
});
