import type { Profile } from "@treadle/contracts";

/** Why times of a profile may not be those of the workflow; undefined where it was measured as it is launched now. */
export function describeMismatch(profile: Profile, keys: ReadonlyMap<string, string>): string | undefined {
  const changed = [...keys].filter(([name, key]) => profile.components[name]?.key !== key).map(([name]) => `'${name}'`);
  if (changed.length === 0) return undefined;
  return `${changed.join(", ")} changed since the profile of '${profile.workflow}' was made, so times may be others; measure again with 'treadle profile'`;
}
