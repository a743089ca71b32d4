/**
 * An action that is a request to a model service (`SubmitRequest.service`): scheduled like a lease, asked like OpenAI's API asks.
 *
 * AQ1 a client reaches the service that it names, at the paths that the configuration gives, and nothing else; headers that are
 *     of the connection or name a client are refused (`isForwarded`).
 * AQ2 devices are held until the answer has ended, or the action was cut, and no longer: a client that reads slowly does not hold
 *     them, as its answer waits in a file.
 */
import * as grpc from "@grpc/grpc-js";
import { defaultLimits } from "../drivers/sandbox.ts";
import type { ActionContext } from "../pool/action-record.ts";
import { askService, type LeasedServices, type ServedService, unitsFor } from "../services/leased-services.ts";
import { isServedPath, learnFrom, retryFor, sendRequest } from "../services/service-request.ts";
import { limitsOf, type ServiceRequest, type SubmitMessage, type specOf } from "./messages.ts";
import type { Stream } from "./output-spool.ts";
import { StatusError } from "./status.ts";

type Spec = ReturnType<typeof specOf>;
type Asking = { readonly service: string; readonly request?: ServiceRequest | null | undefined };
type ServiceResult = {
  readonly status: "answered" | "timeout" | "output-limit";
  /** undefined where none came */
  readonly httpStatus: number | undefined;
  readonly headers: Readonly<Record<string, string>>;
};

/** Throws a `StatusError` for what is not served. */
export function servedFor(services: LeasedServices | undefined, { service, request }: Asking): ServedService {
  const served = services?.served ?? [];
  const found = served.find(({ name }) => name === service);
  const known = served.map(({ name }) => `'${name}'`).join(", ");
  if (found === undefined)
    throw new StatusError(
      grpc.status.INVALID_ARGUMENT,
      `service: '${service}' is not served; served are ${known || "none"}`,
    );
  const [path = ""] = request?.path.split("?", 1) ?? [];
  if (request && !isServedPath(path, found.paths))
    throw new StatusError(
      grpc.status.INVALID_ARGUMENT,
      `request.path: '${path.slice(0, 200)}' is not served by '${service}'; served are ${found.paths.join(", ")}, or add it to the service's paths`,
    );
  return found;
}

/** What names no units of its devices gets those that the service runs on. */
export function onDevices(spec: Spec, served: ServedService): Spec & { readonly service: string } {
  const { name, resource } = served;
  const asked = { ...spec, kind: spec.kind || name, service: name };
  if (resource in spec.cost) return asked;
  const units = unitsFor(served, "key" in spec ? spec.key : undefined);
  return { ...units, ...asked, cost: { ...spec.cost, ...units.cost } };
}

/** What the action executes. Another attempt follows where the service ended, or answered that it may be asked again. */
export function asksService(
  services: LeasedServices,
  message: SubmitMessage,
  told: { started(context: ActionContext): void; output(stream: Stream, chunk: Buffer): void },
): (context: ActionContext) => Promise<ServiceResult> {
  const { service, retries } = message;
  const { method, path, headers, body } = message.request!;
  const { timeoutMs, maxOutputBytes } = { ...defaultLimits, ...limitsOf(message) };
  return async (context) => {
    told.started(context);
    const cut = new AbortController();
    let ended: ServiceResult["status"] = "answered";
    let answer: Pick<ServiceResult, "httpStatus" | "headers"> = { httpStatus: undefined, headers: {} };
    let room = maxOutputBytes;
    const end = (why: ServiceResult["status"]): void => {
      ended = why;
      cut.abort();
    };
    const timer = setTimeout(end, timeoutMs, "timeout");
    try {
      await askService(services, service, context, (url) => {
        const sent = ["Host", new URL(url).host, ...Object.entries(headers).flat(), "Connection", "close"];
        const framed = [...sent, "Content-Length", String(body.length)];
        const signal = AbortSignal.any([context.signal, cut.signal]);
        return sendRequest(
          { url, method, path, headers: framed, body, signal },
          {
            answered(got) {
              const again = context.attempt < retries ? retryFor(got, "passing") : undefined;
              learnFrom(context, got);
              if (again !== undefined) throw again;
              answer = { httpStatus: got.statusCode, headers: textOf(got.headers) };
            },
            take(piece) {
              if (room > 0) told.output("stdout", piece.subarray(0, room));
              room -= piece.length;
              if (room < 0) end("output-limit");
            },
          },
        );
      });
    } catch (error) {
      context.signal.throwIfAborted();
      if (ended === "answered") throw error;
      context.wasCut();
    } finally {
      clearTimeout(timer);
    }
    return { status: ended, ...answer };
  };
}

const textOf = (headers: Readonly<Record<string, string | readonly string[] | undefined>>): Record<string, string> =>
  Object.fromEntries(
    Object.entries(headers).flatMap(([name, value = []]) => [
      [name, typeof value === "string" ? value : value.join(", ")],
    ]),
  );

/** As `Finished` has it. */
export const answerOf = ({ status, httpStatus, headers }: ServiceResult): object => ({
  status,
  ...(httpStatus === undefined ? {} : { http_status: httpStatus }),
  headers,
});
