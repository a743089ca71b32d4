import { createHash } from "node:crypto";
import { TreadleError, type WeightTicket } from "@treadle/contracts";
import type { ParameterShape } from "./parameters.ts";

/** What published weights are told apart by: their version, and all that the ticket says of the tensors, their checksums included. */
export function sealTicket(ticket: Omit<WeightTicket, "checksum">): WeightTicket {
  return { ...ticket, checksum: checksumOf(ticket) };
}

const checksumOf = ({ policyVersion, tensors, adapter }: Omit<WeightTicket, "checksum">): string =>
  hashOf([
    policyVersion,
    listed(tensors),
    ...(adapter ? [adapter.rank, listed(adapter.tensors), adapter.configCrc32] : []),
  ]);

/** Equal for equal numbers, whatever their version. */
export const digestOf = ({ tensors }: Pick<WeightTicket, "tensors">): string => hashOf(listed(tensors));

const listed = (tensors: WeightTicket["tensors"]) =>
  tensors.map(({ name, shape, dtype, crc32 }) => [name, shape, dtype, crc32]);

const hashOf = (value: unknown): string => createHash("sha256").update(JSON.stringify(value)).digest("hex");

/** Throws `engine.weights-mismatch` unless the ticket lists the model's parameters in their order, and has its own checksum. */
export function checkTicket(layout: readonly ParameterShape[], ticket: WeightTicket): void {
  const { tensors } = ticket;
  if (tensors.length !== layout.length)
    throw refusedTicket(ticket, `they have '${tensors.length}' tensors where the model has '${layout.length}'`);
  layout.forEach(({ name, shape }, index) => {
    const given = tensors[index]!;
    if (given.name !== name)
      throw refusedTicket(ticket, `tensor '${index}' is '${given.name}' where the model has '${name}'`);
    if (given.shape.join() !== shape.join())
      throw refusedTicket(
        ticket,
        `'${name}' has shape '${given.shape.join("x")}' where the model has '${shape.join("x")}'`,
      );
  });
  const checksum = checksumOf(ticket);
  if (checksum !== ticket.checksum)
    throw refusedTicket(ticket, `the ticket's checksum is '${checksum}' where '${ticket.checksum}' was announced`);
}

export function refusedTicket(
  { policyVersion }: Pick<WeightTicket, "policyVersion">,
  what: string,
  cause?: unknown,
): TreadleError {
  return new TreadleError(
    "engine.weights-mismatch",
    `weights of version '${policyVersion}' refused: ${what}; check that both engines have one model configuration`,
    { cause, details: { policyVersion } },
  );
}
