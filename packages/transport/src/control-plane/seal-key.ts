import { z } from "zod";

/** The public key of a sealed box, as processes say it of themselves. */
export const SealKey = z.string().regex(/^[A-Za-z0-9_-]{43}$/);
