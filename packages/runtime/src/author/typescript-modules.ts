/**
 * A hook of Node's module loader, in the loader's own thread: TypeScript is always a module, also where the nearest
 * package.json says nothing or `commonjs`. What imports Treadle could not be anything else.
 */
import type { ResolveHook } from "node:module";

export const resolve: ResolveHook = async (specifier, context, next) => {
  const resolved = await next(specifier, context);
  const isTypeScript = /\.tsx?(\?|$)/.test(resolved.url);
  return isTypeScript && resolved.format === "commonjs" ? { ...resolved, format: "module" } : resolved;
};
