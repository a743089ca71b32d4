/** Whether the code on a node is the runner's, and if not, which of it. */
import { ask, type ControlPlane, type FilesReply, type Member } from "@treadle/contracts";
import { type Code, codeDifference, ProjectCode, versionDifference } from "../../node/code-hash.ts";

/** Of files that a node may name: more than a project may have. */
const maxFiles = 100_000;

/** The runner's own code, which is looked at once, and not before somebody asks. */
export class OwnCode {
  readonly #root: string | undefined;
  readonly #notice: (text: string) => void;
  #code: Promise<Code> | undefined;

  /** `root`: of the project; undefined where this process is the one node, and nothing is compared. */
  constructor(root: string | undefined, notice: (text: string) => void) {
    this.#root = root;
    this.#notice = notice;
  }

  look(): Promise<Code> {
    this.#code ??= this.#look();
    return this.#code;
  }

  async #look(): Promise<Code> {
    const root = this.#root;
    if (root === undefined) return { hash: "", files: new Map(), outside: [] };
    const code = await new ProjectCode(root).current();
    for (const link of code.outside)
      this.#notice(`'${link}' leads out of the project '${root}': code there is not compared between nodes`);
    return code;
  }
}

export type NodeDifference =
  | { readonly type: "none" }
  /** it can be used, and `what` is to be said */
  | { readonly type: "bearable"; readonly what: string }
  | { readonly type: "other code"; readonly what: string };

/** Rejects with what `command` does, and `link.protocol`. */
export async function nodeDifference(
  plane: ControlPlane,
  member: Member,
  own: Code,
  timeoutMs: number,
): Promise<NodeDifference> {
  const { codeHash, versions } = await ask(plane, "node", member, "check", {}, { timeoutMs });
  const version = versionDifference(versions);
  if (version !== undefined && !version.isBearable) {
    return { type: "other code", what: `${version.what}; install the same on both, and start both the same way` };
  }
  if (codeHash === own.hash) return version === undefined ? { type: "none" } : { type: "bearable", what: version.what };
  const theirs = new Map<string, string>();
  for (let after: string | undefined = ""; after !== undefined; ) {
    const page: FilesReply = await ask(plane, "node", member, "files", { after }, { timeoutMs });
    for (const [path, hash] of page.files) theirs.set(path, hash);
    const last = page.files.at(-1)?.[0];
    // A node that gives the same page again, or one without end, would be asked for ever.
    after = page.isLast || last === undefined || last <= after || theirs.size > maxFiles ? undefined : last;
  }
  const which = codeDifference(own.files, theirs) ?? "it changed while it was compared";
  return {
    type: "other code",
    what: `its code is not the runner's: ${which}; bring both to the same version, with 'npm install' and 'npm run build' where they are used`,
  };
}
