import { TreadleError } from "@treadle/contracts";

export function protocolError(what: string, cause?: unknown): TreadleError {
  return new TreadleError("link.protocol", `malformed data: ${what}; both processes must run the same version`, {
    cause,
  });
}
