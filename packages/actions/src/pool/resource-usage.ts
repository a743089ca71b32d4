/** Units of one resource over time. */
export type UsageReport = {
  /** granted at the moment */
  readonly held: number;
  /** unit-seconds granted since the beginning */
  readonly heldSeconds: number;
  /** mean units held in each of the last whole seconds, oldest first, at most `timelineSeconds` of them */
  readonly timeline: readonly number[];
};

export const timelineSeconds = 120;

type Meter = { held: number; sinceMs: number; heldSeconds: number; readonly seconds: Map<number, number> };

/** What is held of each resource, now and over the last two minutes. Pure state: time comes in as `nowMs`. */
export class ResourceUsage {
  readonly #meters = new Map<string, Meter>();

  constructor(resources: Iterable<string>, nowMs: number) {
    for (const resource of resources)
      this.#meters.set(resource, { held: 0, sinceMs: nowMs, heldSeconds: 0, seconds: new Map() });
  }

  /** Units that are granted from now on, negative for those given back. */
  change(resource: string, units: number, nowMs: number): void {
    const meter = this.#meters.get(resource);
    if (meter === undefined) return;
    advance(meter, nowMs);
    meter.held += units;
  }

  report(nowMs: number): Record<string, UsageReport> {
    return Object.fromEntries(
      [...this.#meters].map(([resource, meter]) => {
        advance(meter, nowMs);
        const current = Math.floor(nowMs / 1000);
        const first = Math.max(current - timelineSeconds, Math.min(current, ...meter.seconds.keys()));
        const timeline = Array.from({ length: current - first }, (_, i) => meter.seconds.get(first + i) ?? 0);
        // Sums of grants and releases of fractions leave a rest.
        return [resource, { held: Math.max(0, meter.held), heldSeconds: meter.heldSeconds, timeline }];
      }),
    );
  }
}

type Holding = { held: number; heldSeconds: number; sinceMs: number };

/** Clients choose the names. Beyond this many, those that hold nothing are forgotten. */
const mostTenants = 4096;

/** What each tenant was granted of each resource, for as long as it held it. Pure state: time comes in as `nowMs`. */
export class TenantUsage {
  readonly #tenants = new Map<string, Map<string, Holding>>();

  /** Units that the tenant is granted from now on, negative for those given back. */
  change(tenant: string, resource: string, units: number, nowMs: number): void {
    if (!this.#tenants.has(tenant) && this.#tenants.size >= mostTenants)
      for (const [name, holdings] of this.#tenants)
        if ([...holdings.values()].every(({ held }) => held < 1e-9)) this.#tenants.delete(name);
    const holdings = this.#tenants.get(tenant) ?? new Map<string, Holding>();
    this.#tenants.set(tenant, holdings);
    const holding = holdings.get(resource) ?? { held: 0, heldSeconds: 0, sinceMs: nowMs };
    holdings.set(resource, holding);
    book(holding, nowMs);
    holding.held += units;
  }

  /** Unit-seconds by tenant and resource. */
  report(nowMs: number): ReadonlyMap<string, Readonly<Record<string, number>>> {
    return new Map(
      [...this.#tenants].map(([tenant, holdings]) => {
        for (const holding of holdings.values()) book(holding, nowMs);
        return [
          tenant,
          Object.fromEntries([...holdings].map(([resource, { heldSeconds }]) => [resource, heldSeconds])),
        ];
      }),
    );
  }
}

function book(holding: Holding, nowMs: number): void {
  holding.heldSeconds += (holding.held * (nowMs - holding.sinceMs)) / 1000;
  holding.sinceMs = nowMs;
}

/** Books what was held since the last change, second by second, and forgets seconds that nobody will ask for. */
function advance(meter: Meter, nowMs: number): void {
  const { held, seconds } = meter;
  meter.heldSeconds += (held * (nowMs - meter.sinceMs)) / 1000;
  const current = Math.floor(nowMs / 1000);
  let fromMs = Math.max(meter.sinceMs, (current - timelineSeconds) * 1000);
  while (fromMs < nowMs) {
    const second = Math.floor(fromMs / 1000);
    const untilMs = Math.min(nowMs, (second + 1) * 1000);
    seconds.set(second, (seconds.get(second) ?? 0) + (held * (untilMs - fromMs)) / 1000);
    fromMs = untilMs;
  }
  for (const second of seconds.keys()) if (second < current - timelineSeconds) seconds.delete(second);
  meter.sinceMs = nowMs;
}
