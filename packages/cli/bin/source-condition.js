// Lets packages of the workspace resolve to their sources, as `node --conditions=source` does.
export function resolve(specifier, context, next) {
  return next(specifier, { ...context, conditions: [...context.conditions, "source"] });
}
