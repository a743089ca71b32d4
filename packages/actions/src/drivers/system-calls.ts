/**
 * The system calls that commands of `CgroupDriver` and of `DockerDriver` may make: those that Docker's default profile leaves to a process without
 * capabilities (github.com/moby/profiles, seccomp/default.json, June 2026), ptrace and process_vm_* included. From Linux 4.8 on a
 * tracer cannot pass a call by the filter, and its targets are processes of the same user, which are the same sandbox's.
 *
 * Less is allowed than there:
 * - calls of one architecture only: no programs of 32 bits, no x32
 * - sockets of four families, and pairs of them: the others are seldom attacked by anybody else, and most need a right
 * - no name_to_handle_at: its handles open nothing without open_by_handle_at
 */

/** By name: its number on x86-64, and on arm64, as `asm/unistd_64.h` and `asm-generic/unistd.h` of Linux have it. */
const numbers = `
  read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, poll 7 -, lseek 8 62, mmap 9 222,
  mprotect 10 226, munmap 11 215, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
  ioctl 16 29, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, access 21 -, pipe 22 -, select 23 -,
  sched_yield 24 124, mremap 25 216, msync 26 227, mincore 27 232, madvise 28 233, shmget 29 194, shmat 30 196,
  shmctl 31 195, dup 32 23, dup2 33 -, pause 34 -, nanosleep 35 101, getitimer 36 102, alarm 37 -, setitimer 38 103,
  getpid 39 172, sendfile 40 71, socket 41 198, connect 42 203, accept 43 202, sendto 44 206, recvfrom 45 207,
  sendmsg 46 211, recvmsg 47 212, shutdown 48 210, bind 49 200, listen 50 201, getsockname 51 204, getpeername 52 205,
  socketpair 53 199, setsockopt 54 208, getsockopt 55 209, clone 56 220, fork 57 -, vfork 58 -, execve 59 221,
  exit 60 93, wait4 61 260, kill 62 129, uname 63 160, semget 64 190, semop 65 193, semctl 66 191, shmdt 67 197,
  msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, fcntl 72 25, flock 73 32, fsync 74 82, fdatasync 75 83,
  truncate 76 45, ftruncate 77 46, getdents 78 -, getcwd 79 17, chdir 80 49, fchdir 81 50, rename 82 -, mkdir 83 -,
  rmdir 84 -, creat 85 -, link 86 -, unlink 87 -, symlink 88 -, readlink 89 -, chmod 90 -, fchmod 91 52, chown 92 -,
  fchown 93 55, lchown 94 -, umask 95 166, gettimeofday 96 169, getrlimit 97 163, getrusage 98 165, sysinfo 99 179,
  times 100 153, ptrace 101 117, getuid 102 174, getgid 104 176, setuid 105 146, setgid 106 144, geteuid 107 175,
  getegid 108 177, setpgid 109 154, getppid 110 173, getpgrp 111 -, setsid 112 157, setreuid 113 145, setregid 114 143,
  getgroups 115 158, setgroups 116 159, setresuid 117 147, getresuid 118 148, setresgid 119 149, getresgid 120 150,
  getpgid 121 155, setfsuid 122 151, setfsgid 123 152, getsid 124 156, capget 125 90, capset 126 91,
  rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigqueueinfo 129 138, rt_sigsuspend 130 133, sigaltstack 131 132,
  utime 132 -, mknod 133 -, personality 135 92, statfs 137 43, fstatfs 138 44, getpriority 140 141,
  setpriority 141 140, sched_setparam 142 118, sched_getparam 143 121, sched_setscheduler 144 119,
  sched_getscheduler 145 120, sched_get_priority_max 146 125, sched_get_priority_min 147 126,
  sched_rr_get_interval 148 127, mlock 149 228, munlock 150 229, mlockall 151 230, munlockall 152 231,
  modify_ldt 154 -, prctl 157 167, arch_prctl 158 -, adjtimex 159 171, setrlimit 160 164, sync 162 81, gettid 186 178,
  readahead 187 213, setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, getxattr 191 8, lgetxattr 192 9,
  fgetxattr 193 10, listxattr 194 11, llistxattr 195 12, flistxattr 196 13, removexattr 197 14, lremovexattr 198 15,
  fremovexattr 199 16, tkill 200 130, time 201 -, futex 202 98, sched_setaffinity 203 122, sched_getaffinity 204 123,
  set_thread_area 205 -, io_setup 206 0, io_destroy 207 1, io_getevents 208 4, io_submit 209 2, io_cancel 210 3,
  get_thread_area 211 -, epoll_create 213 -, epoll_ctl_old 214 -, epoll_wait_old 215 -, remap_file_pages 216 234,
  getdents64 217 61, set_tid_address 218 96, restart_syscall 219 128, semtimedop 220 192, fadvise64 221 223,
  timer_create 222 107, timer_settime 223 110, timer_gettime 224 108, timer_getoverrun 225 109, timer_delete 226 111,
  clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, exit_group 231 94, epoll_wait 232 -,
  epoll_ctl 233 21, tgkill 234 131, utimes 235 -, mq_open 240 180, mq_unlink 241 181, mq_timedsend 242 182,
  mq_timedreceive 243 183, mq_notify 244 184, mq_getsetattr 245 185, waitid 247 95, ioprio_set 251 30,
  ioprio_get 252 31, inotify_init 253 -, inotify_add_watch 254 27, inotify_rm_watch 255 28, openat 257 56,
  mkdirat 258 34, mknodat 259 33, fchownat 260 54, futimesat 261 -, newfstatat 262 79, unlinkat 263 35,
  renameat 264 38, linkat 265 37, symlinkat 266 36, readlinkat 267 78, fchmodat 268 53, faccessat 269 48,
  pselect6 270 72, ppoll 271 73, set_robust_list 273 99, get_robust_list 274 100, splice 275 76, tee 276 77,
  sync_file_range 277 84, vmsplice 278 75, utimensat 280 88, epoll_pwait 281 22, signalfd 282 -, timerfd_create 283 85,
  eventfd 284 -, fallocate 285 47, timerfd_settime 286 86, timerfd_gettime 287 87, accept4 288 242, signalfd4 289 74,
  eventfd2 290 19, epoll_create1 291 20, dup3 292 24, pipe2 293 59, inotify_init1 294 26, preadv 295 69,
  pwritev 296 70, rt_tgsigqueueinfo 297 240, recvmmsg 299 243, fanotify_mark 301 263, prlimit64 302 261,
  clock_adjtime 305 266, syncfs 306 267, sendmmsg 307 269, getcpu 309 168, process_vm_readv 310 270,
  process_vm_writev 311 271, sched_setattr 314 274, sched_getattr 315 275, renameat2 316 276, seccomp 317 277,
  getrandom 318 278, memfd_create 319 279, execveat 322 281, membarrier 324 283, mlock2 325 284,
  copy_file_range 326 285, preadv2 327 286, pwritev2 328 287, pkey_mprotect 329 288, pkey_alloc 330 289,
  pkey_free 331 290, statx 332 291, io_pgetevents 333 292, rseq 334 293, uretprobe 335 -, pidfd_send_signal 424 424,
  pidfd_open 434 434, close_range 436 436, openat2 437 437, faccessat2 439 439, epoll_pwait2 441 441,
  landlock_create_ruleset 444 444, landlock_add_rule 445 445, landlock_restrict_self 446 446, memfd_secret 447 447,
  process_mrelease 448 448, futex_waitv 449 449, cachestat 451 451, fchmodat2 452 452, map_shadow_stack 453 453,
  futex_wake 454 454, futex_wait 455 455, futex_requeue 456 456, statmount 457 457, listmount 458 458, mseal 462 462,
  setxattrat 463 463, getxattrat 464 464, listxattrat 465 465, removexattrat 466 466
`;

export const architectures = {
  x64: { column: 0, audit: 0xc000003e, engine: "SCMP_ARCH_X86_64" },
  arm64: { column: 1, audit: 0xc00000b7, engine: "SCMP_ARCH_AARCH64" },
} as const;
export type Architecture = keyof typeof architectures;

export function allowedCalls(architecture: Architecture): ReadonlyMap<string, number> {
  const { column } = architectures[architecture];
  const calls = numbers.split(",").map((call) => call.trim().split(" ") as [string, string, string]);
  return new Map(
    calls.filter((call) => call[1 + column] !== "-").map((call) => [call[0], Number(call[1 + column])] as const),
  );
}

/** What the first argument must be where the name alone does not allow a call. The kernel reads its lower half, as we do. */
export type Condition = { readonly isOneOf: readonly number[] } | { readonly hasNoneOf: number };

/** AF_UNIX, AF_INET, AF_INET6, AF_NETLINK */
const families = { isOneOf: [1, 2, 10, 16] };
export const conditions: Readonly<Record<string, Condition>> = {
  // All flags CLONE_NEW*: CLONE_NEWTIME is none of this call.
  clone: { hasNoneOf: 0x7e020000 },
  socket: families,
  socketpair: families,
  // PER_LINUX and PER_LINUX32, each also with UNAME26; the last one asks.
  personality: { isOneOf: [0x0, 0x8, 0x20000, 0x20008, 0xffffffff] },
};

/** clone3 has its flags in memory, where no filter sees them: C libraries fall back to clone where there is none. */
export const absentCalls: ReadonlyMap<string, number> = new Map([["clone3", 435]]);
