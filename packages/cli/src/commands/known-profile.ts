/** The profile that a plan is made of; where there is none, whoever sits at the terminal is asked whether to make it. */
import { basename, resolve } from "node:path";
import { type Profile, TreadleError } from "@treadle/contracts";
import { profilePath, readProfile } from "@treadle/runtime/runner";

type Asked = {
  readonly workflow: string;
  readonly projectRoot: string;
  readonly flags: {
    readonly profile?: string;
    readonly config?: string;
    readonly set: readonly string[];
    readonly json?: boolean;
  };
};

export type ProfilePorts = {
  /** somebody sees what is asked, and can answer */
  readonly isTerminal: boolean;
  /** throws what is wrong with the configuration, which no profile mends */
  readonly check: () => Promise<unknown>;
  readonly confirm: (question: string) => Promise<boolean>;
  /** measures the workflow as it is configured, and keeps what it finds */
  readonly measure: () => Promise<Profile>;
};

/** Throws `profile.missing` with the command that makes one. */
export async function knownProfile({ workflow, projectRoot, flags }: Asked, ports: ProfilePorts): Promise<Profile> {
  const name = basename(resolve(workflow));
  const path = flags.profile ?? profilePath(projectRoot, workflow);
  try {
    return readProfile(path, name);
  } catch (error) {
    // A file that somebody names is not where a new profile would be kept.
    if (!(error instanceof TreadleError) || error.code !== "profile.missing" || flags.profile !== undefined)
      throw error;
    await ports.check();
    const question = `There is no profile of '${name}'. Measure it now? That runs some of its steps.`;
    if (ports.isTerminal && flags.json !== true && (await ports.confirm(question))) return ports.measure();
    throw new TreadleError(
      "profile.missing",
      `there is no profile of '${name}' at '${path}'; run '${commandOf(workflow, flags)}', which measures some of its steps`,
      { cause: error.cause },
    );
  }
}

/** With the settings of the plan, as a shell takes them. */
function commandOf(workflow: string, { config, set }: Asked["flags"]): string {
  const values = [...(config === undefined ? [] : ["--config", config]), ...set.flatMap((each) => ["--set", each])];
  const quoted = (word: string): string => (/^[\w@%+=:,./-]+$/.test(word) ? word : JSON.stringify(word));
  return ["treadle", "profile", workflow, ...values].map(quoted).join(" ");
}
