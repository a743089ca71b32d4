/** Whether the code on a node is the runner's, and if not, which of it. */
import { ask, type ControlPlane, type FilesReply, type Member } from "@treadle/contracts";
import { type Code, codeDifference, codeVersions, versionDifference } from "../../node/code-hash.ts";

/** Undefined when the node runs what this process runs. Rejects with what `command` does, and `link.protocol`. */
export async function nodeDifference(
  plane: ControlPlane,
  member: Member,
  own: Code,
  timeoutMs: number,
): Promise<string | undefined> {
  const { codeHash, versions } = await ask(plane, "node", member, "check", {}, { timeoutMs });
  const otherVersion = versionDifference(versions, codeVersions);
  if (otherVersion !== undefined) return `${otherVersion}; install the same on both`;
  if (codeHash === own.hash) return undefined;
  const theirs = new Map<string, string>();
  for (let after: string | undefined = ""; after !== undefined; ) {
    const page: FilesReply = await ask(plane, "node", member, "files", { after }, { timeoutMs });
    for (const [path, hash] of page.files) theirs.set(path, hash);
    const last = page.files.at(-1)?.[0];
    // A node that gives the same page again would be asked for ever.
    after = page.isLast || last === undefined || last <= after ? undefined : last;
  }
  const which = codeDifference(own.files, theirs) ?? "it changed while it was compared";
  return `its code is not the runner's: ${which}; bring both to the same version, with 'npm install' and 'npm run build' where they are used`;
}
