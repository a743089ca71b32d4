import { expect, test } from "vitest";
import { endInTurn } from "../src/end-in-turn.ts";

test("every stage ends, whatever fails before it, and the first failure is told", async () => {
  const ended: string[] = [];
  const end = async (name: string, fails = false): Promise<void> => {
    ended.push(name);
    if (fails) throw new Error(name);
  };
  const all = endInTurn(
    () => [end("a"), end("b", true), end("c")],
    () => [undefined],
    () => [end("d", true), end("e")],
  );
  await expect(all).rejects.toThrow(/^b$/);
  expect(ended).toEqual(["a", "b", "c", "d", "e"]);
});
