/**
 * Cycles whose members do not fit in memory beside each other, and give way to each other turn by turn where they share devices. Pure.
 *
 * A search knows no such turns: it is asked as if members that are not at work had left (`cycleMemory: "by-turns"`). What it finds is a
 * bound, and what a step really takes is for a replay to say, or for an estimate of its swaps.
 */
import type { FlowGraph, Plan } from "@treadle/contracts";
import { memorySlack, residentMemory, usedDevices } from "../plan/component-time.ts";
import { collapseCycles } from "../plan/graph.ts";
import type { PlanNode, PlanProblem } from "../plan/problem.ts";
import { memoryOfPool } from "../plan/turn-swap.ts";
import { cycleOf } from "./cycle-model.ts";
import type { ProfileProblem } from "./profile-problem.ts";

/** Members of cycles that may run as one. */
const cyclesOf = (problem: PlanProblem): PlanNode[][] =>
  collapseCycles(problem).cycles.flatMap(({ component }) => (component ? [[...component.members]] : []));

/** Whether they fit in memory beside each other, each on so many devices. */
function fitBeside(problem: PlanProblem, members: readonly PlanNode[], devicesOf: (node: PlanNode) => number): boolean {
  const memory = members.reduce((sum, node) => {
    const used = usedDevices(node, devicesOf(node));
    return sum + (used === 0 ? Number.POSITIVE_INFINITY : residentMemory(node, used, problem.batch));
  }, 0);
  return memory <= memoryOfPool(problem, members[0]!.pool) * (1 + memorySlack);
}

/** The members of each cycle that find no room together even on all devices. */
function givingWay(problem: PlanProblem): PlanNode[][] {
  const all = ({ pool }: PlanNode) => (pool === undefined ? problem.devices : problem.pools[pool]!.devices);
  return cyclesOf(problem).filter((members) => !fitBeside(problem, members, all));
}

/** The same question, where members of such cycles may give way to each other; undefined where none have to. */
export function byTurns(question: ProfileProblem): ProfileProblem | undefined {
  const cycles = givingWay(question.problem);
  if (cycles.length === 0) return undefined;
  const notes = cycles.map((members) => {
    const names = members.map(({ id }) => `'${id}'`).join(" and ");
    return `${names} answer each other and do not fit in memory together, so they give way to each other turn by turn where they share devices`;
  });
  return {
    ...question,
    problem: { ...question.problem, cycleMemory: "by-turns" },
    notes: [...question.notes, ...notes],
  };
}

/**
 * What such swaps of a step take by the profile's turns, all of them one after the other, on the devices that a plan gives: for plans that
 * are not replayed.
 */
export function turnSwapSeconds(problem: PlanProblem, plan: Plan, graph: FlowGraph): number {
  const devicesOf = ({ id }: PlanNode) => new Set(plan.components[id]!.ranks.flatMap(({ devices }) => devices));
  return cyclesOf(problem)
    .filter((members) => {
      const held = members.map(devicesOf);
      if (fitBeside(problem, members, (node) => devicesOf(node).size)) return false;
      return held.some((own, i) => held.some((other, j) => j > i && [...own].some((device) => other.has(device))));
    })
    .reduce((sum, members) => {
      const names = members.map(({ id }) => id);
      const swap = members.reduce((total, { onload = 0, offload = 0 }) => total + onload + offload, 0);
      return sum + turnsIn(names, graph) * swap;
    }, 0);
}

/** How often what goes round comes round in a step. */
function turnsIn(names: readonly string[], graph: FlowGraph): number {
  const isInside = (ends: readonly string[]) => ends.some((name) => names.includes(name));
  const inside = Object.entries(graph.channels).filter(
    ([, { producers, consumers }]) => isInside(producers) && isInside(consumers),
  );
  const items = Math.max(0, ...inside.map(([, { itemsPerStep }]) => itemsPerStep));
  const flows = inside.map(([channel, { itemsPerStep }]) => ({ channel, items: itemsPerStep }));
  const population = cycleOf(names[0]!, flows, flows, graph)?.population ?? 1;
  return Math.ceil(items / population);
}
