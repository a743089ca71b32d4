/** `8+3+7-2` is `3+7+8-2`: the same problem as every order of the operands before its operator changes. */
export function identityOf(chain: string): string {
  const begin = /^\d+(?:(?:\+\d+)+|(?:\*\d+)+)(?!\d)/.exec(chain)?.[0];
  if (begin === undefined) return chain;
  const operator = begin.includes("+") ? "+" : "*";
  const operands = begin.split(operator).sort((a, b) => Number(a) - Number(b));
  return operands.join(operator) + chain.slice(begin.length);
}
