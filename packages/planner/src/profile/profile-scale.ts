import type { Profile } from "@treadle/contracts";
import { measuredSeconds } from "../auto/measured-time.ts";
import { fitTime } from "./time-fit.ts";

/**
 * A profile brought up to date by a newer, smaller one of the same workflow: each component's samples are scaled by what
 * the points that both have say of it, and the newer points replace the older. Steps measured before count no more. Pure.
 */
export function scaleProfile(older: Profile, newer: Profile, createdAt: string): Profile {
  const { batch } = older.graph;
  const components = Object.fromEntries(
    Object.entries(older.components).map(([name, component]) => {
      const fresh = newer.components[name];
      if (!fresh) return [name, component];
      const ratios = fresh.samples.flatMap((sample) => {
        const before = measuredSeconds(component, sample.devices, sample.items, batch);
        return before > 0 && sample.seconds > 0 ? [sample.seconds / before] : [];
      });
      const ratio =
        ratios.length > 0 ? Math.exp(ratios.reduce((sum, each) => sum + Math.log(each), 0) / ratios.length) : 1;
      const replaced = new Set(fresh.samples.map(({ devices, items }) => `${devices} ${items}`));
      const samples = [
        ...component.samples
          .filter(({ devices, items }) => !replaced.has(`${devices} ${items}`))
          .map((sample) => ({ ...sample, seconds: sample.seconds * ratio })),
        ...fresh.samples,
      ].toSorted((a, b) => a.devices - b.devices || a.items - b.items);
      const { devicesPerRank } = component;
      const { lengthSpread = component.lengthSpread, streams = false } = fresh;
      const onceSeconds = (component.onceSeconds ?? 0) * ratio;
      const fit = fitTime(
        samples,
        lengthSpread === undefined ? undefined : { lengthSpread, devicesPerRank, batch, streams },
        { seconds: onceSeconds, batch },
      );
      return [
        name,
        {
          ...component,
          samples,
          fit,
          onceSeconds,
          ...(lengthSpread === undefined ? {} : { lengthSpread }),
          streams,
          serialSeconds: fresh.serialSeconds,
          processorSeconds: fresh.processorSeconds,
        },
      ];
    }),
  );
  return { ...older, createdAt, components, steps: newer.steps };
}
