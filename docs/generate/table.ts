/** Text that cannot end a cell, nor begin a tag outside of code. */
export const cell = (text: string): string =>
  text
    .replace(/\s+/g, " ")
    .trim()
    .replaceAll("|", "\\|")
    .replace(/`[^`]*`|</g, (found) => (found === "<" ? "&lt;" : found));

/** In a cell, too; what is within is taken as it is, but for the bar. */
export const code = (text: string): string => `\`${text.replaceAll("|", "\\|")}\``;

export function table(heads: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.join(" | ")} |`;
  return [line(heads), line(heads.map(() => "---")), ...rows.map(line)].join("\n");
}
