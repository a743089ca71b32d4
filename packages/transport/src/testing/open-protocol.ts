import { z } from "zod";

type Asked = { readonly request: z.ZodUnknown; readonly reply: z.ZodUnknown };
type Told = { readonly request: z.ZodUnknown };

/** A protocol of one test or benchmark, whose bodies and replies are anything. */
export function openProtocol<const A extends string, const T extends string = never>(
  asked: readonly A[],
  told: readonly T[] = [],
): Readonly<Record<A, Asked> & Record<T, Told>> {
  const anything = z.unknown();
  return Object.fromEntries([
    ...asked.map((verb) => [verb, { request: anything, reply: anything }]),
    ...told.map((verb) => [verb, { request: anything }]),
  ]) as Record<A, Asked> & Record<T, Told>;
}
