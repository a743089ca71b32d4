import { readdirSync, readFileSync } from "node:fs";

/** Ids of live processes whose command line holds the text; with `group` those in a control group whose path has that. */
export function processesWith(text: string, group = ""): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        return (
          readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(text) &&
          readFileSync(`/proc/${pid}/cgroup`, "utf8").includes(group) &&
          !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, "utf8"))
        );
      } catch {
        return false;
      }
    });
}

export async function eventually(check: () => boolean | Promise<boolean>): Promise<boolean> {
  for (let i = 0; i < 1200 && !(await check()); i++) await new Promise((resolve) => setTimeout(resolve, 50));
  return check();
}
