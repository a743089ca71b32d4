/** Simple commands of a shell script, as words: what documents show, not all that a shell understands. */
export function shellCommands(script: string): string[][] {
  const commands: string[][] = [[]];
  const token = /\\\n|#[^\n]*|&&|\|\||[;|&\n]|[ \t]+|((?:'[^']*'|"(?:\\.|[^"])*"|\\.|[^\s;|&'"\\])+)/gy;
  for (let rest = token.exec(script); rest !== null; rest = token.exec(script)) {
    const [found, word] = rest;
    if (word !== undefined) (commands.at(-1) as string[]).push(unquoted(word));
    else if (/^(&&|\|\||[;|&\n])$/.test(found)) commands.push([]);
  }
  return commands.filter((words) => words.length > 0);
}

const unquoted = (word: string): string =>
  word.replace(/'([^']*)'|"((?:\\.|[^"])*)"|\\(.)/g, (_, single, double, escaped) => single ?? double ?? escaped);
