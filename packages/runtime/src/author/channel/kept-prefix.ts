/** How the names of kept items' segments begin: of one process, or of all of the run. */
export function keptPrefix(segmentPrefix: string, worker?: string, incarnation = 0): string {
  return worker === undefined
    ? `${segmentPrefix}kept-`
    : `${segmentPrefix}kept-${worker.replace("/", ".")}.${incarnation}-`;
}
