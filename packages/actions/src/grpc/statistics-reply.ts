import type { KindReport } from "../formulation/action-history.ts";
import type { RestoreCost } from "../managers/gpu.ts";
import type { CommandActions } from "../pool/command-actions.ts";

export type HostLoad = {
  readonly cores: number;
  readonly held: number;
  readonly memoryBytes: number;
  readonly reservedBytes: number;
  /** why it is away */
  readonly away: string | undefined;
};

function expectationOf(report: KindReport | undefined) {
  if (report === undefined) return {};
  const { source, efficiency, oneUnitSeconds, predictionError } = report;
  const points = efficiency.map(({ units, efficiency: value }) => ({ units, value }));
  return {
    ...(source === undefined ? {} : { curve: { source, efficiency: points } }),
    ...(oneUnitSeconds === undefined ? {} : { expected_seconds: oneUnitSeconds }),
    ...(predictionError === undefined ? {} : { prediction_error: predictionError }),
  };
}

/** What the pool tells a tenant; everything where nobody has a token. */
export function statisticsOf(
  actions: CommandActions,
  tenant: string | undefined,
  hosts: Readonly<Record<string, HostLoad>> = {},
  restores: readonly RestoreCost[] = [],
) {
  /** GS1 */
  const isVisible = (of: string): boolean => tenant === undefined || of === tenant;
  const expectations = actions.pool.expectations(tenant);
  const kinds = Object.fromEntries(
    Object.entries(actions.pool.statistics(tenant)).map(([kind, s]) => [
      kind,
      {
        ...expectationOf(expectations.get(kind)),
        submitted: s.submitted,
        completed: s.completed,
        failed: s.failed,
        cancelled: s.cancelled,
        retried: s.retried,
        act_seconds: s.actSeconds,
        queueing_seconds: s.queueingSeconds,
        execution_seconds: s.executionSeconds,
        overhead_seconds: s.overheadSeconds,
        longest_act_seconds: s.longestActSeconds,
      },
    ]),
  );
  const tenants = Object.entries(actions.pool.tenants()).filter(([name]) => isVisible(name));
  const total = (of: "waiting" | "running"): number => tenants.reduce((sum, [, load]) => sum + load[of], 0);
  return {
    kinds,
    waiting: total("waiting"),
    running: total("running"),
    isolation: actions.driver.isolation,
    resources: Object.fromEntries(
      Object.entries(actions.pool.usage()).map(([resource, { units, held, heldSeconds, timeline }]) => [
        resource,
        { units, held, held_seconds: heldSeconds, timeline },
      ]),
    ),
    started: actions.pool.recentStarts().flatMap((start) =>
      !isVisible(start.tenant)
        ? []
        : {
            action: start.id,
            kind: start.kind,
            tenant: start.tenant,
            seconds_ago: start.secondsAgo,
            waited_seconds: start.waitedSeconds,
            units: start.units,
            ...(start.expectedSeconds === undefined ? {} : { expected_seconds: start.expectedSeconds }),
            why: start.why,
          },
    ),
    tenants: Object.fromEntries(tenants),
    charged: Object.fromEntries(
      [...actions.pool.charged()]
        .filter(([name]) => isVisible(name))
        .map(([name, unitSeconds]) => [name, { unit_seconds: unitSeconds }]),
    ),
    policy: actions.pool.policy,
    restores: restores.map(({ service, dop, startSeconds, wakeSeconds }) => ({
      service,
      devices: dop,
      ...(startSeconds === undefined ? {} : { start_seconds: startSeconds }),
      ...(wakeSeconds === undefined ? {} : { wake_seconds: wakeSeconds }),
    })),
    hosts: Object.fromEntries(
      Object.entries(hosts).map(([host, { memoryBytes, reservedBytes, away, ...cores }]) => {
        const memory = { memory_bytes: memoryBytes, reserved_bytes: reservedBytes };
        // Where it is, and how it fails, is the operator's to know.
        const why = away === undefined || tenant === undefined ? (away ?? "") : "the service's log says why";
        return [host, { ...cores, ...memory, away: why }];
      }),
    ),
  };
}
