/** Which hosts and addresses an allow-list opens, however they are written. */
import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { AllowEntry, AllowList, allowedByEach } from "../../src/network/allow-list.ts";
import { isPublic, parseAddress, parseHost } from "../../src/network/host.ts";

function allowsHost(entries: readonly string[], text: string, port: number): boolean {
  const host = parseHost(text);
  return host !== undefined && new AllowList(entries).allowsHost(host, port);
}

const allowsAddress = (entries: readonly string[], text: string, port: number): boolean =>
  new AllowList(entries).allowsAddress(parseAddress(text)!, port);

describe("an entry", () => {
  test.each([
    ["pypi.org", "pypi.org", 443, true],
    ["pypi.org", "pypi.org", 80, true],
    ["pypi.org", "pypi.org", 8080, false],
    ["pypi.org", "PyPI.ORG.", 443, true],
    ["PYPI.org.", "pypi.org", 443, true],
    ["pypi.org", "pypi.org..", 443, false],
    ["pypi.org", "files.pypi.org", 443, false],
    ["pypi.org", "notpypi.org", 443, false],
    ["pypi.org", "pypi.org.evil.net", 443, false],
    ["pypi.org", "pypi.org@evil.net", 443, false],
    ["pypi.org", "evil.net/pypi.org", 443, false],
    ["pypi.org", "pypi%2eorg", 443, false],
    ["pypi.org", "pypi。org", 443, true],
    ["pypi.org", "py\u00adpi.org", 443, false],
    ["pypi.org", "pypi.org\0.evil.net", 443, false],
    ["pypi.org:443", "pypi.org", 443, true],
    ["pypi.org:443", "pypi.org", 80, false],
    ["pypi.org:*", "pypi.org", 22, true],
    ["*.pythonhosted.org", "files.pythonhosted.org", 443, true],
    ["*.pythonhosted.org", "a.b.PythonHosted.org.", 443, true],
    ["*.pythonhosted.org", "pythonhosted.org", 443, false],
    ["*.pythonhosted.org", ".pythonhosted.org", 443, false],
    ["*.pythonhosted.org", "evilpythonhosted.org", 443, false],
    ["*.x.org:8443", "a.x.org", 8443, true],
    ["*.x.org:8443", "a.x.org", 443, false],
    ["münchen.de", "xn--mnchen-3ya.de", 443, true],
    ["10.1.2.3", "10.1.2.3", 80, true],
    ["10.1.2.3", "10.1.2.4", 80, false],
    ["10.1.2.3:8080", "10.1.2.3", 8080, true],
    ["10.1.2.3:8080", "10.1.2.3", 80, false],
    ["10.1.2.3", "[::ffff:10.1.2.3]", 80, true],
    ["::ffff:10.1.2.3", "10.1.2.3", 80, true],
    ["2001:db8::1", "[2001:DB8:0:0::1]", 443, true],
    ["[2001:db8::1]:22", "[2001:db8::1]", 22, true],
    ["[2001:db8::1]:22", "[2001:db8::1]", 443, false],
    ["10.1.0.0/16", "10.1.255.255", 443, true],
    ["10.1.0.0/16", "10.2.0.0", 443, false],
    ["10.1.0.0/16:*", "10.1.2.3", 22, true],
    ["[2001:db8::/32]:443", "[2001:db8:ffff::1]", 443, true],
    ["2001:db8::/32", "[2001:db9::1]", 443, false],
    ["::ffff:10.0.0.0/104", "10.9.9.9", 443, true],
    ["::/0", "10.9.9.9", 443, false],
    ["0.0.0.0/0", "[2001:db8::1]", 443, false],
    ["0.0.0.0/0", "pypi.org", 443, false],
    ["0.0.0.0/0", "127.0.0.1", 443, true],
  ])("'%s' opens '%s' port %i: %s", (entry, host, port, expected) => {
    expect(allowsHost([entry], host, port)).toBe(expected);
  });

  test.each([
    ["", "is no host"],
    ["https://pypi.org", "is a URL: give the host alone, as 'pypi.org'"],
    ["https://pypi.org:8443/simple", "is a URL: give the host alone, as 'pypi.org:8443'"],
    ["pypi.org/simple", "has a path"],
    ["*", "would be every name"],
    ["*.", "would be every name"],
    ["*:443", "would be every name"],
    ["*.10.1.2.3", "is no host"],
    ["a.*.org", "is no host"],
    ["**.org", "is no host"],
    ["pypi.org:0", "has port '0'"],
    ["pypi.org:65536", "has port '65536'"],
    ["pypi.org:", "has port ''"],
    ["pypi.org:+80", "has port '+80'"],
    ["pypi.org:80-90", "has port '80-90'"],
    [" pypi.org", "has white space"],
    ["pypi.org\n", "has white space"],
    ["pypi org", "has white space"],
    ["pypi..org", "is no host"],
    [".pypi.org", "is no host"],
    ["user@pypi.org", "is no host"],
    ["pypi!.org", "is no host"],
    [`${"a".repeat(64)}.org`, "is no host"],
    [`${"a.".repeat(127)}org`, "is no host"],
    ["foo.123", "is no host"],
    ["1.2.3.4.5", "is no host"],
    ["256.1.1.1", "is no host"],
    ["127.1", "is an unusual form of an address: give '127.0.0.1'"],
    ["0x7f000001", "is an unusual form of an address: give '127.0.0.1'"],
    ["010.0.0.1", "is an unusual form of an address: give '8.0.0.1'"],
    ["10.1.2.3/16", "has bits beyond its prefix: give '10.1.0.0/16'"],
    ["10.1.0.0/33", "has prefix length '33'"],
    ["2001:db8::/129", "has prefix length '129'"],
    ["10.1/16", "no range"],
    ["fe80::1%eth0", "is no host"],
    ["[10.1.2.3]:80", "is no host"],
    ["[pypi.org]", "is no host"],
    ["[::1", "is no host"],
    ["2001:db8::1:65536:", "is no host"],
  ])("'%s' is refused, with what to do", (entry, message) => {
    const answer = AllowEntry.safeParse(entry);
    expect(answer.error?.issues[0]?.message).toContain(`'${entry}' `);
    expect(answer.error?.issues[0]?.message).toContain(message);
    expect(() => new AllowList([entry])).toThrow(TreadleError);
  });

  test("a valid one is kept as written", () => {
    expect(AllowEntry.parse("*.PythonHosted.org:443")).toBe("*.PythonHosted.org:443");
  });
});

const loopbackSpellings = [
  "127.0.0.1",
  "127.1",
  "127.0.1",
  "2130706433",
  "0x7f000001",
  "0x7f.1",
  "0X7F.0.0.1",
  "0177.0.0.1",
  "017700000001",
  "127.0.0.1.",
  "１２７.0.0.1",
  "127。0。0。1",
  "[::ffff:127.0.0.1]",
  "[::ffff:7f00:1]",
  "[0:0:0:0:0:FFFF:7f00:0001]",
];

describe("an address", () => {
  test.each(loopbackSpellings)("ALW2 '%s' is 127.0.0.1, which only an address opens", (text) => {
    expect(String((parseHost(text) as { address: unknown }).address)).toBe("127.0.0.1");
    expect(allowsHost(["localhost:*"], text, 80)).toBe(false);
    expect(allowsHost(["127.0.0.1"], text, 80)).toBe(true);
    expect(allowsHost(["127.0.0.0/8:80"], text, 80)).toBe(true);
    expect(allowsHost(["127.0.0.1:443"], text, 80)).toBe(false);
  });

  test.each(["256.0.0.1", "1.2.3.08", "1.2.3.4.5", "4294967296", "127.0.0.1 x", "[127.0.0.1]", "[fe80::1%1]", ""])(
    "ALW2 '%s' is neither an address nor a name",
    (text) => expect(parseHost(text)).toBeUndefined(),
  );

  test.each([
    ["0.0.0.0", "0.255.255.255"],
    ["10.0.0.0", "10.255.255.255"],
    ["100.64.0.0", "100.127.255.255"],
    ["127.0.0.1", "127.255.255.255"],
    ["169.254.0.0", "169.254.169.254"],
    ["172.16.0.0", "172.31.255.255"],
    ["192.0.0.0", "192.0.0.255"],
    ["192.0.2.0", "192.88.99.1"],
    ["192.168.0.0", "192.168.255.255"],
    ["198.18.0.0", "198.19.255.255"],
    ["198.51.100.1", "203.0.113.1"],
    ["224.0.0.1", "239.255.255.255"],
    ["240.0.0.0", "255.255.255.255"],
    ["168.63.129.16", "100.100.100.200"],
    ["::", "::1"],
    ["::7f00:1", "::10.0.0.1"],
    ["::ffff:127.0.0.1", "::ffff:0:127.0.0.1"],
    ["64:ff9b::127.0.0.1", "64:ff9b::169.254.169.254"],
    ["64:ff9b::a00:1", "64:ff9b:1::8.8.8.8"],
    ["2002:7f00:1::", "2002:808:808::1"],
    ["2001::1", "2001:0:7f00:1::1"],
    ["2001:2::1", "2001:1ff::1"],
    ["2001:db8::1", "3fff::1"],
    ["fe80::1", "febf::1"],
    ["fc00::1", "fd00:ec2::254"],
    ["fec0::1", "ff02::1"],
    ["100::1", "5f00::1"],
    ["4000::1", "e000::1"],
  ])("ALW1 '%s' and '%s' are not public: only an entry that is an address opens them to a name", (...texts) => {
    for (const text of texts) {
      const form = text.includes(":") ? `[${text}]:443` : `${text}:443`;
      expect(allowsAddress(["pypi.org:*", "0.0.0.0/1:22"], text, 443)).toBe(false);
      expect(allowsAddress(["pypi.org", form], text, 443)).toBe(true);
      expect(allowsAddress(["pypi.org", form], text, 80)).toBe(false);
    }
  });

  test.each([
    "1.1.1.1",
    "8.8.8.8",
    "100.63.255.255",
    "100.128.0.0",
    "172.32.0.0",
    "223.255.255.255",
    "2606:4700::1111",
  ])("ALW1 '%s' is public", (text) => expect(allowsAddress([], text, 443)).toBe(true));

  test("ALW1 NAT64 is as the address it carries", () => {
    expect(allowsAddress([], "64:ff9b::8.8.8.8", 443)).toBe(true);
    expect(allowsAddress(["10.0.0.0/8"], "64:ff9b::10.0.0.1", 443)).toBe(false);
  });
});

describe("several lists", () => {
  test("ALW3 allow what each of them allows, each by entries of its own", () => {
    const open = new AllowList(["git.corp", "10.0.0.0/8", "*.pypi.org:*"]);
    const narrow = new AllowList(["git.corp", "10.1.0.0/16", "a.pypi.org"]);
    const nameless = new AllowList(["git.corp"]);
    const both = allowedByEach([open, narrow]);
    expect(both.allowsHost(parseHost("git.corp")!, 443)).toBe(true);
    expect(both.allowsAddress(parseAddress("10.1.2.3")!, 443)).toBe(true);
    expect(both.allowsAddress(parseAddress("10.2.2.3")!, 443)).toBe(false);
    expect(both.allowsHost(parseHost("10.2.2.3")!, 443)).toBe(false);
    expect(both.allowsHost(parseHost("b.pypi.org")!, 443)).toBe(false);
    expect(both.allowsHost(parseHost("a.pypi.org")!, 22)).toBe(false);
    expect(allowedByEach([open, nameless]).allowsAddress(parseAddress("10.1.2.3")!, 443)).toBe(false);
  });

  test("ALW3 no list, and a list without entries, allow nothing", () => {
    for (const allow of [allowedByEach([]), allowedByEach([new AllowList([]), new AllowList(["pypi.org"])])])
      expect(allow.allowsHost(parseHost("pypi.org")!, 443)).toBe(false);
    expect(allowedByEach([]).allowsAddress(parseAddress("8.8.8.8")!, 443)).toBe(false);
  });
});

describe("against an oracle that counts", () => {
  const octet = fc.oneof(fc.constantFrom(0, 10, 100, 127, 168, 169, 192, 198, 254), fc.nat(255));
  const octets = fc.tuple(octet, octet, octet, octet);
  const numberOf = (four: readonly number[]): number => four.reduce((sum, part) => sum * 256 + part, 0);
  const textOf = (value: number): string =>
    [2 ** 24, 2 ** 16, 256, 1].map((unit) => Math.floor(value / unit) % 256).join(".");

  /** Spellings that the system takes. */
  const spell = (four: readonly number[], how: number): string => {
    const [a = 0, b = 0, c = 0, d = 0] = four;
    const hex = (n: number): string => n.toString(16);
    const spellings = [
      four.join("."),
      String(numberOf(four)),
      `0x${hex(numberOf(four))}`,
      `${a}.${(b * 256 + c) * 256 + d}`,
      `${a}.${b}.${c * 256 + d}`,
      four.map((part) => `0${part.toString(8)}`).join("."),
      `[::ffff:${four.join(".")}]`,
      `[::ffff:${hex(a * 256 + b)}:${hex(c * 256 + d)}]`,
    ];
    return spellings[how % spellings.length]!;
  };

  test("ALW2 IPv4 in any spelling is allowed where a range and its port contain it", () => {
    const range = fc.record({
      base: octets,
      length: fc.integer({ min: 0, max: 32 }),
      port: fc.constantFrom("", ":80", ":22", ":*"),
    });
    fc.assert(
      fc.property(
        octets,
        fc.nat(),
        fc.array(range, { maxLength: 4 }),
        fc.constantFrom(22, 80, 443),
        fc.boolean(),
        (four, how, ranges, port, isNear) => {
          const asked = numberOf(four);
          let expected = false;
          const entries = ranges.map(({ base, length, port: ports }, i) => {
            const size = 2 ** (32 - length);
            const start = Math.floor((isNear && i === 0 ? asked : numberOf(base)) / size) * size;
            const isOfPort = ports === "" ? port !== 22 : ports === ":*" || ports === `:${port}`;
            if (isOfPort && asked >= start && asked < start + size) expected = true;
            return `${textOf(start)}/${length}${ports}`;
          });
          expect(allowsHost(entries, spell(four, how), port)).toBe(expected);
        },
      ),
      { numRuns: 2000 },
    );
  });

  const special4 = [
    "0/8",
    "10/8",
    "100.64/10",
    "127/8",
    "169.254/16",
    "172.16/12",
    "192.0.0/24",
    "192.0.2/24",
    "192.31.196/24",
    "192.52.193/24",
    "192.88.99/24",
    "192.168/16",
    "192.175.48/24",
    "198.18/15",
    "198.51.100/24",
    "203.0.113/24",
    "224/3",
  ];
  const isSpecial4 = (value: number): boolean =>
    value === numberOf([168, 63, 129, 16]) ||
    special4.some((text) => {
      const [base = "", length = ""] = text.split("/");
      const start = numberOf([...base.split(".").map(Number), 0, 0, 0].slice(0, 4));
      return value >= start && value < start + 2 ** (32 - Number(length));
    });

  test("ALW1 IPv4 is public outside of IANA's special ranges, at their edges, too, and so it is in NAT64", () => {
    const edges = special4.flatMap((text) => {
      const [base = "", length = ""] = text.split("/");
      const start = numberOf([...base.split(".").map(Number), 0, 0, 0].slice(0, 4));
      return [start - 1, start, start + 2 ** (32 - Number(length)) - 1, start + 2 ** (32 - Number(length))];
    });
    const value = fc.oneof(
      octets.map(numberOf),
      fc.constantFrom(...edges.filter((edge) => edge >= 0 && edge < 2 ** 32)),
    );
    fc.assert(
      fc.property(value, (n) => {
        for (const prefix of ["", "::ffff:", "64:ff9b::"])
          expect(isPublic(parseAddress(prefix + textOf(n))!)).toBe(!isSpecial4(n));
      }),
      { numRuns: 2000 },
    );
  });

  test("a name is allowed where its labels end as an entry's do", () => {
    const label = fc.constantFrom("a", "b", "aa", "a-b", "org");
    const labels = fc.array(label, { minLength: 1, maxLength: 4 });
    const entry = fc.record({ labels, isBelow: fc.boolean() });
    fc.assert(
      fc.property(labels, fc.array(entry, { maxLength: 3 }), fc.boolean(), (asked, entries, isDotted) => {
        const expected = entries.some(({ labels: of, isBelow }) => {
          const tail = asked.slice(-of.length);
          return tail.join() === of.join() && (isBelow ? asked.length > of.length : asked.length === of.length);
        });
        const texts = entries.map(({ labels: of, isBelow }) => (isBelow ? "*." : "") + of.join("."));
        expect(allowsHost(texts, asked.join(".").toUpperCase() + (isDotted ? "." : ""), 443)).toBe(expected);
      }),
    );
  });
});
