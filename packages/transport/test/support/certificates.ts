/** Certificates of a project's own authority, made with openssl. */
import { execFile } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import type { LinkTls } from "@treadle/contracts";

const run = promisify(execFile);
const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];

/** An authority, and a certificate that it has signed, for whom `names` says. */
export async function makeCertificates(
  folder: string,
  name: string,
  names = "IP:127.0.0.1,DNS:localhost",
): Promise<LinkTls> {
  const at = (file: string) => join(folder, `${name}-${file}`);
  const openssl = (...args: string[]) => run("openssl", args, { timeout: 30_000 });
  await openssl(
    "req",
    "-x509",
    ...key,
    "-subj",
    `/CN=${name} authority`,
    "-keyout",
    at("ca.key"),
    "-out",
    at("ca.pem"),
  );
  await openssl("req", ...key.slice(0, 5), "-subj", `/CN=${name}`, "-keyout", at("key.pem"), "-out", at("request.pem"));
  await writeFile(at("extensions"), `subjectAltName=${names}\n`);
  await openssl(
    ...["x509", "-req", "-in", at("request.pem"), "-CA", at("ca.pem"), "-CAkey", at("ca.key"), "-CAcreateserial"],
    ...["-days", "2", "-extfile", at("extensions"), "-out", at("cert.pem")],
  );
  return { ca: at("ca.pem"), cert: at("cert.pem"), key: at("key.pem") };
}
