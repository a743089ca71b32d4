/** Archives as an attacker makes them, whatever our own code would write. */
export type RawEntry = {
  readonly name: string;
  readonly flag?: string;
  readonly content?: string;
  readonly target?: string;
  /** in place of the content's length */
  readonly size?: string;
  readonly mode?: number;
};

export function rawEntry({ name, flag = "0", content = "", target = "", size, mode = 0o644 }: RawEntry): Buffer {
  const data = Buffer.from(content, "latin1");
  const block = Buffer.alloc(512);
  const fields: [string, number][] = [
    [name.slice(0, 100), 0],
    [mode.toString(8).padStart(7, "0"), 100],
    [size ?? data.length.toString(8).padStart(11, "0"), 124],
    ["00000000000", 136],
    ["        ", 148],
    [flag, 156],
    [target.slice(0, 100), 157],
    ["ustar", 257],
    ["00", 263],
  ];
  for (const [text, at] of fields) block.write(text, at, "latin1");
  const sum = block.reduce((total, byte) => total + byte, 0);
  block.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148, "latin1");
  return Buffer.concat([block, data, Buffer.alloc((512 - (data.length % 512)) % 512)]);
}

export const rawArchive = (...entries: readonly RawEntry[]): Buffer =>
  Buffer.concat([...entries.map(rawEntry), Buffer.alloc(1024)]);

/** of an extended header */
export function record(key: string, value: string): string {
  const rest = ` ${key}=${value}\n`;
  let length = rest.length;
  while (String(length).length + rest.length !== length) length = String(length).length + rest.length;
  return `${length}${rest}`;
}

export const folder: RawEntry = { name: "./", flag: "5", mode: 0o755 };
