/** What cores did for others while a command ran: its own processor time against /proc/stat. */

/** Busy and all clock ticks of each core since the start of the machine. */
export type CoreTicks = ReadonlyMap<number, { readonly busy: number; readonly all: number }>;

/** Reads the lines `cpu0 user nice system idle iowait irq softirq steal …` of /proc/stat. */
export function parseCoreTicks(text: string): CoreTicks {
  const cores = new Map<number, { busy: number; all: number }>();
  for (const [, core, fields] of text.matchAll(/^cpu(\d+) (.*)$/gm)) {
    // Guests' time is contained in user and nice.
    const ticks = fields!.trim().split(/\s+/).slice(0, 8).map(Number);
    const all = ticks.reduce((sum, value) => sum + value, 0);
    cores.set(Number(core), { busy: all - (ticks[3] ?? 0) - (ticks[4] ?? 0), all });
  }
  return cores;
}

/** Ticks are counted to the next whole one, on each core, at both ends. */
const tickSlack = 2;

/**
 * The share of the cores' time that went to others between two readings, 0 to 1. `ownSeconds` is the processor time of
 * the command with all that it started. A tick is 1/100 s, as on every common kernel; shorter stretches say nothing, 0.
 */
export function contention(
  before: CoreTicks,
  after: CoreTicks,
  cores: readonly number[],
  ownSeconds: number,
  ticksPerSecond = 100,
): number {
  let busy = 0;
  let all = 0;
  for (const core of cores) {
    const [from, to] = [before.get(core), after.get(core)];
    if (from === undefined || to === undefined) continue;
    busy += to.busy - from.busy;
    all += to.all - from.all;
  }
  const others = busy - ownSeconds * ticksPerSecond - tickSlack * cores.length;
  return all === 0 ? 0 : Math.min(1, Math.max(0, others / all));
}
