import { evaluateSchedule, modeOf, type PlanModel, type Schedule } from "../src/index.ts";

/**
 * Writes out every schedule there is, legal or not, and keeps the best legal one by `evaluateSchedule`: of any kind, and
 * of each mode. Shares no search code with the planners. For three components on four devices.
 */
export function bruteForce(model: PlanModel): Map<string, number> {
  const ids = model.dag.components.map((component) => component.id);
  const best = new Map<string, number>();
  for (const schedule of schedules(ids, model.problem.devices, model.problem.batch)) {
    const { time } = evaluateSchedule(model, schedule);
    if (time === null) continue;
    for (const kind of ["any", modeOf(schedule)])
      best.set(kind, Math.min(best.get(kind) ?? Number.POSITIVE_INFINITY, time));
  }
  return best;
}

function* schedules(ids: readonly string[], devices: number, items: number): Generator<Schedule> {
  if (ids.length === 1) {
    yield { op: "node", node: ids[0]!, devices, items };
    return;
  }
  for (const [left, right] of partitions(ids)) {
    for (const first of schedules(left, devices, items)) {
      for (const second of schedules(right, devices, items)) yield { op: "temporal", devices, items, first, second };
    }
    for (let share = 1; share < devices; share++) {
      for (let chunk = 1; chunk <= items; chunk++) {
        for (const first of schedules(left, share, chunk)) {
          for (const second of schedules(right, devices - share, chunk)) {
            yield { op: "pipeline", devices, items, chunk, first, second };
            if (chunk === items) yield { op: "parallel", devices, items, first, second };
          }
        }
      }
    }
  }
  if (ids.length !== 3 || devices < 3) return;
  for (const order of permutations(ids)) {
    for (let chunk = 1; chunk <= items; chunk++) {
      for (let a = 1; a <= devices - 2; a++) {
        for (let b = 1; b <= devices - a - 1; b++) {
          const shares = [a, b, devices - a - b];
          const stages = order.map((node, i): Schedule => ({ op: "node", node, devices: shares[i]!, items: chunk }));
          yield { op: "pipeline", devices, items, chunk, stages };
        }
      }
    }
  }
}

function* partitions(ids: readonly string[]): Generator<[string[], string[]]> {
  for (let mask = 1; mask < 2 ** ids.length - 1; mask++) {
    yield [ids.filter((_, i) => (mask >> i) & 1), ids.filter((_, i) => !((mask >> i) & 1))];
  }
}

function permutations(ids: readonly string[]): string[][] {
  if (ids.length <= 1) return [[...ids]];
  return ids.flatMap((id) => permutations(ids.filter((other) => other !== id)).map((rest) => [id, ...rest]));
}
