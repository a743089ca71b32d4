/** Other processes of a benchmark. */

/** Arguments of a process that runs a script of the bench. A child inherits no loader that was registered within this process. */
export function scriptArguments(script: string): string[] {
  return script.endsWith(".ts") ? ["--conditions=source", "--import", import.meta.resolve("tsx"), script] : [script];
}

/** The name of a sibling module, as a source or compiled. */
export function moduleFile(name: string): string {
  return import.meta.url.endsWith(".ts") ? `${name}.ts` : `${name}.js`;
}
