import * as zlib from "node:zlib";
import { crc32 } from "@treadle/contracts";

/** zlib's CRC-32 of what comes after what has `before`: the native one, which Node has from 20.15 on, is many times as fast. */
export const checksumOf: (bytes: Uint8Array, before?: number) => number = zlib.crc32 ?? crc32;

export const inHex = (checksum: number): string => checksum.toString(16).padStart(8, "0");
