import { expect, test } from "vitest";
import { type ChaosOptions, type ChaosReport, chaos } from "./chaos.ts";
import { ChaosCluster } from "./chaos-cluster.ts";
import { SharedMachine } from "./shared-machine.ts";

/** What was said meanwhile is the message of a failure. */
async function struck(options: Omit<ChaosOptions, "log" | "seed">): Promise<ChaosReport & { readonly said: string }> {
  const seed = 1;
  const said: string[] = [`--seed ${seed}`];
  const report = await chaos({ ...options, seed, log: (text) => said.push(text) }).catch((error) => {
    throw new Error(said.join("\n"), { cause: error });
  });
  expect(report.steps, said.join("\n")).toBeGreaterThan(3);
  return { ...report, said: said.join("\n") };
}

test("S2, S4, J1: a cluster that is struck at random for a moment trains every prompt once and leaves nothing", async () => {
  const { strikes, gaveUp, said } = await struck({ minutes: 0.1, open: ChaosCluster.opens("embedded"), pauseMs: 1500 });
  expect(Object.values(strikes).some((times) => times > 0)).toBe(true);
  expect(gaveUp, said).toEqual([]);
}, 960_000);

test("S2, S4, J1: a flooded door, a namesake, a hung agent, a child that is left behind and the loss of two nodes, one after another, cost no prompt and leave nothing", async () => {
  const first = ["door flooded", "namesake started", "agent hung", "child left behind", "nodes lost"];
  const { strikes, gaveUp, said } = await struck({
    minutes: 0.1,
    open: ChaosCluster.opens("ledger"),
    pauseMs: 1500,
    first,
  });
  for (const kind of first) expect(strikes[kind], kind).toBeGreaterThan(0);
  expect(gaveUp, said).toEqual([]);
}, 960_000);

test("S2, S4, J1, PD2: a pool that is killed, contested and taken over under two runs, of which one is killed, costs no prompt of either; no two compute on a device, and nothing is left", async () => {
  const first = ["pool killed", "runner killed", "another pool started", "pool taken over"];
  const { strikes, gaveUp, said } = await struck({ minutes: 0.1, open: SharedMachine.open, pauseMs: 1500, first });
  for (const kind of first) expect(strikes[kind], kind).toBeGreaterThan(0);
  expect(gaveUp, said).toEqual([]);
}, 960_000);
