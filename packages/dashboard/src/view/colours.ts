/**
 * One colour for a component, on every page and in the terminal: a slot of the palette that depends on its name and on which
 * other components the run has, never on the order in which they are seen.
 */

/** Slots that components share; the last one is the runner's. */
export const numColours = 8;
const runnerSlot = numColours - 1;

const usual: Readonly<Record<string, number>> = {
  rollout: 0,
  actor: 1,
  inference: 2,
  simulator: 3,
  reward: 4,
  tool: 5,
  critic: 6,
  runner: runnerSlot,
};

/** The usual components have their usual slots; others take a free one, by name. Past seven, slots are shared. */
export function colourSlots(components: Iterable<string>): Map<string, number> {
  const names = [...new Set(components)].sort();
  const slots = new Map<string, number>();
  const taken = new Set<number>([runnerSlot]);
  for (const name of names) {
    const slot = Object.hasOwn(usual, name) ? usual[name] : undefined;
    if (slot === undefined) continue;
    slots.set(name, slot);
    taken.add(slot);
  }
  for (const name of names) {
    if (slots.has(name)) continue;
    const preferred = hash(name) % runnerSlot;
    const free = Array.from({ length: runnerSlot }, (_, i) => (preferred + i) % runnerSlot).find((s) => !taken.has(s));
    slots.set(name, free ?? preferred);
    if (free !== undefined) taken.add(free);
  }
  return slots;
}

/** FNV-1a */
function hash(text: string): number {
  let value = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 0x01000193);
  return value >>> 0;
}
