/** Tables in Markdown: whole, or line by line as rows come. */
export const tableRow = (cells: readonly string[]): string => `| ${cells.join(" | ")} |`;

export const tableHeader = (names: readonly string[]): string =>
  `${tableRow(names)}\n${tableRow(names.map(() => "---"))}`;

export const markdownTable = (names: readonly string[], rows: readonly (readonly string[])[]): string =>
  [tableHeader(names), ...rows.map(tableRow)].join("\n");
