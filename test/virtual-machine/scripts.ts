/** What an emulated machine begins with, as shell scripts of busybox, which need nothing else. */

/** The system's root is this machine's, below files that are written. What begins here becomes the first process there. */
export const initScript = (drivers: readonly string[]): string => `#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
for driver in ${drivers.join(" ")}; do $b insmod /drivers/$driver; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose host /host
$b mount -t tmpfs -o size=50% written /written
$b mkdir /written/upper /written/work
$b mount -t overlay -o lowerdir=/host,upperdir=/written/upper,workdir=/written/work overlay /root
$b mount -t proc proc /root/proc
$b mount -t sysfs sys /root/sys
$b mount -t devtmpfs dev /root/dev
$b mkdir -p /root/dev/pts /root/dev/shm
$b mount -t devpts devpts /root/dev/pts
$b mount -t tmpfs shm /root/dev/shm
$b mount -t tmpfs -o size=50% run /root/run
$b mount -t cgroup2 cgroup2 /root/sys/fs/cgroup
$b ifconfig lo up
$b cp $b /first /asked /root/run/
exec $b switch_root /root /run/busybox sh /run/first
`;

const quoted = (word: string): string => `'${word.replaceAll("'", `'\\''`)}'`;

/** The last thing that the machine does. */
export function askedScript(
  words: readonly string[],
  folder: string,
  environment: Readonly<Record<string, string>>,
): string {
  const assigned = Object.entries(environment).map(([name, value]) => `export ${name}=${quoted(value)}`);
  return `${assigned.join("\n")}
export TMPDIR=/run/tmp
mkdir $TMPDIR
truncate -s 800M /run/disk # as on a disk: in memory, files of sandboxes could have no limit
mkfs.ext4 -q /run/disk && mount -t ext4 -o loop /run/disk $TMPDIR
chmod 1777 $TMPDIR
cd ${quoted(folder)}
${words.map(quoted).join(" ")} 2>&1
printf '\\ntreadle-machine: exit %s\\n' $?
/run/busybox poweroff -f
`;
}

/** In a group as a service with `Delegate=yes` has one: it has all controllers, and the processes of the service are in it. */
export const firstScript = `group=/sys/fs/cgroup/system.slice/treadle.service
mkdir -p $group
for above in /sys/fs/cgroup /sys/fs/cgroup/system.slice; do
  echo "+cpuset +cpu +memory +pids" > $above/cgroup.subtree_control
done
sh -c 'echo $$ > "$0"/cgroup.procs; exec sh /run/asked' $group
`;

/** Under systemd, which is told to start this alone, and whose own /tmp would hide what is in this machine's. */
export const systemdScript = `mkdir -p /run/systemd/system
ln -s /dev/null /run/systemd/system/tmp.mount
cat > /run/systemd/system/asked.service <<END
[Service]
Type=oneshot
ExecStart=/run/busybox sh /run/asked
StandardOutput=file:/dev/ttyS0
StandardError=file:/dev/ttyS0
END
exec /lib/systemd/systemd --unit=asked.service --log-target=null --show-status=0
`;
