/** For sibling packages that measure what lies below the public entry. */
export { envelopeKind } from "./link/envelope.ts";
export { headBytes } from "./link/frame.ts";
export { segmentFolder, sharedMemory, unlinkSegment } from "./memory/shared-memory.ts";
