/**
 * Encrypted links between machines. Both sides prove that the project's authority signed their certificate; whether the
 * process is the one that it says it is, is for the handshake with the run's token, since processes come and go where
 * certificates stay.
 */
import { readFileSync } from "node:fs";
import net from "node:net";
import tls from "node:tls";
import { type LinkTls, TreadleError } from "@treadle/contracts";

export type Certificates = { readonly ca: Buffer; readonly cert: Buffer; readonly key: Buffer };

/** Throws `config.invalid` that names the file, never its contents. */
export function readCertificates(files: LinkTls): Certificates {
  const read = (path: string): Buffer => {
    try {
      return readFileSync(path);
    } catch (cause) {
      throw new TreadleError("config.invalid", `certificate file '${path}' cannot be read; give an existing file`, {
        cause,
      });
    }
  };
  const certificates = { ca: read(files.ca), cert: read(files.cert), key: read(files.key) };
  try {
    tls.createSecureContext(certificates);
  } catch {
    throw new TreadleError(
      "config.invalid",
      `'${files.ca}', '${files.cert}' and '${files.key}' are not an authority, a certificate and its key in PEM; check which is which`,
    );
  }
  return certificates;
}

const minVersion = "TLSv1.3";

/** `onSocket` gets connections whose certificate the authority signed; the others are `refused`. */
export function createTlsServer(
  certificates: Certificates,
  handshakeTimeout: number,
  onSocket: (socket: net.Socket) => void,
  refused: (error: Error, from: net.Socket) => void,
): net.Server {
  const server = tls.createServer({
    ...certificates,
    minVersion,
    requestCert: true,
    rejectUnauthorized: true,
    handshakeTimeout,
    allowHalfOpen: true,
    noDelay: true,
  });
  server.on("secureConnection", onSocket);
  server.on("tlsClientError", (error, socket) => refused(error, socket));
  return server;
}

/** Emits `secureConnect` when both sides are satisfied. */
export function dialTls(
  certificates: Certificates,
  where: { readonly host: string; readonly port: number },
  onread: net.OnReadOpts,
): net.Socket {
  // Typed without what it passes on to the socket.
  const options: tls.ConnectionOptions & { onread: net.OnReadOpts; allowHalfOpen: boolean } = {
    ...where,
    ...certificates,
    minVersion,
    allowHalfOpen: true,
    // Addresses are the ones that the registry says; the authority vouches for the machine.
    checkServerIdentity: () => undefined,
    servername: net.isIP(where.host) === 0 ? where.host : "",
    onread,
  };
  return tls.connect(options);
}
