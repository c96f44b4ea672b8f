//! The system calls of a sealed cell.
//!
//! A program that only exchanges frames through shared memory needs to wait, to kick, to read a
//! clock and to allocate. Every other call ends the process: the kernel sends SIGSYS, whose handler
//! reports the number of the call to the creator and exits (`SECCOMP_RET_TRAP`). The handler cannot
//! be replaced, because the calls that could do so are forbidden, too.
#![allow(unsafe_code, reason = "a handler of signals, and what the kernel passes to it")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::cell::{Report, send};

/// The exit status of a process that tried a forbidden call: 128 + SIGSYS, as shells have it.
pub const STATUS: i32 = 128 + libc::SIGSYS;

/// Calls that are allowed with any arguments.
const ALLOWED: &[i64] = &[
    // Kicks, on sockets that are open already.
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    // Waiting.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_mremap,
    libc::SYS_getrandom,
    // The end of threads and of the process.
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_getpid,
    libc::SYS_gettid,
];

/// The socket that violations are reported on.
///
/// # Protocol
/// Written once, before the filter is installed; read by the handler in any thread. The number
/// alone matters, so no order is needed: the system call that installs the filter is one.
static CONTROL: AtomicI32 = AtomicI32::new(-1);

/// Makes every call that is not on the list end this process, in all threads, for good, after it
/// was reported on `control`.
///
/// # Errors
/// The kernel has no filters of system calls, or a container forbids them.
pub fn forbid(control: BorrowedFd<'_>) -> io::Result<()> {
    CONTROL.store(control.as_raw_fd(), Relaxed);
    handle_violations()?;
    let filter = filter().as_ref().map_err(|error| io::Error::other(error.clone()))?;
    seccompiler::apply_filter_all_threads(filter).map_err(io::Error::other)
}

/// A call that a process may make beside the list: its number, and an argument that it must have,
/// by place and value (32 bits).
pub type Beside = (i64, Option<(u8, u32)>);

/// Makes the kernel kill this process at every call that is neither on the list nor in `beside`, in
/// all threads, for good. For processes whose creator sees how they end.
///
/// # Errors
/// The kernel has no filters of system calls, or a container forbids them.
pub fn kill_others(beside: &[Beside]) -> io::Result<()> {
    let filter = compile(beside, SeccompAction::KillProcess).map_err(io::Error::other)?;
    seccompiler::apply_filter_all_threads(&filter).map_err(io::Error::other)
}

/// The filter. Copies of a process that has made it need not make it again.
pub fn filter() -> &'static Result<BpfProgram, String> {
    static FILTER: OnceLock<Result<BpfProgram, String>> = OnceLock::new();
    FILTER.get_or_init(|| compile(&[], SeccompAction::Trap).map_err(|error| error.to_string()))
}

fn compile(
    beside: &[Beside],
    others: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let is = |argument, operator, value: u64| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
    };
    let not_executable = || is(2, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0);
    let nothing = u64::from(u32::MAX);
    let mut rules: std::collections::BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    // Only fresh memory may be mapped, and never as executable.
    let fresh = vec![not_executable()?, is(4, SeccompCmpOp::Eq, nothing)?];
    rules.insert(libc::SYS_mmap, vec![SeccompRule::new(fresh)?]);
    rules.insert(libc::SYS_mprotect, vec![SeccompRule::new(vec![not_executable()?])?]);
    // The standard library looks whether a descriptor is open before it closes it.
    let get = vec![is(1, SeccompCmpOp::Eq, libc::F_GETFD as u64)?];
    rules.insert(libc::SYS_fcntl, vec![SeccompRule::new(get)?]);
    // Writes to standard output and error are allowed, for logs.
    let output = |fd| SeccompRule::new(vec![is(0, SeccompCmpOp::Eq, fd)?]);
    for call in [libc::SYS_write, libc::SYS_writev] {
        rules.insert(call, vec![output(1)?, output(2)?]);
    }
    for (call, argument) in beside {
        let rule = match argument {
            None => Vec::new(),
            Some((at, value)) => {
                vec![SeccompRule::new(vec![is(*at, SeccompCmpOp::Eq, u64::from(*value))?])?]
            }
        };
        rules.insert(*call, rule);
    }
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, others, SeccompAction::Allow, arch)?.try_into()
}

/// The start of what the kernel passes to a handler of SIGSYS (`siginfo_t`, sigaction(2)).
#[repr(C)]
#[allow(dead_code, reason = "the places of the others")]
struct Violation {
    signal: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    padding: libc::c_int,
    address: usize,
    call: libc::c_int,
    arch: libc::c_uint,
}

fn handle_violations() -> io::Result<()> {
    extern "C" fn violated(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel passes a structure that lives while the handler runs.
        let call = unsafe { (*info.cast::<Violation>()).call };
        let control = CONTROL.load(Relaxed);
        // SAFETY: open for as long as the process lives. One that has closed it can report nothing.
        let control = unsafe { BorrowedFd::borrow_raw(control) };
        send(control, &Report::Tried(call.cast_unsigned()));
        crate::fork::end(STATUS);
    }
    // SAFETY: zero is a valid value for each field.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = violated;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler makes two system calls that are safe in handlers, and does not return.
    match unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The name of a system call, as in its manual page; `None` for those that are rarely tried.
#[must_use]
pub fn name(call: u32) -> Option<&'static str> {
    let named = |(number, _): &&(i64, &str)| *number == i64::from(call);
    NAMES.iter().find(named).map(|(_, name)| *name)
}

#[rustfmt::skip]
const NAMES: &[(i64, &str)] = &[
    (libc::SYS_read, "read"), (libc::SYS_write, "write"), (libc::SYS_close, "close"),
    (libc::SYS_fstat, "fstat"), (libc::SYS_lseek, "lseek"), (libc::SYS_mmap, "mmap"),
    (libc::SYS_mprotect, "mprotect"), (libc::SYS_munmap, "munmap"), (libc::SYS_brk, "brk"),
    (libc::SYS_rt_sigaction, "rt_sigaction"), (libc::SYS_rt_sigprocmask, "rt_sigprocmask"),
    (libc::SYS_rt_sigreturn, "rt_sigreturn"), (libc::SYS_ioctl, "ioctl"), (libc::SYS_pread64, "pread64"),
    (libc::SYS_pwrite64, "pwrite64"), (libc::SYS_readv, "readv"), (libc::SYS_writev, "writev"),
    (libc::SYS_sched_yield, "sched_yield"), (libc::SYS_mremap, "mremap"), (libc::SYS_madvise, "madvise"),
    (libc::SYS_shmget, "shmget"), (libc::SYS_shmat, "shmat"), (libc::SYS_shmctl, "shmctl"),
    (libc::SYS_dup, "dup"), (libc::SYS_dup3, "dup3"), (libc::SYS_pipe2, "pipe2"),
    (libc::SYS_nanosleep, "nanosleep"), (libc::SYS_getpid, "getpid"), (libc::SYS_sendfile, "sendfile"),
    (libc::SYS_socket, "socket"), (libc::SYS_connect, "connect"), (libc::SYS_accept, "accept"),
    (libc::SYS_accept4, "accept4"), (libc::SYS_sendto, "sendto"), (libc::SYS_recvfrom, "recvfrom"),
    (libc::SYS_sendmsg, "sendmsg"), (libc::SYS_recvmsg, "recvmsg"), (libc::SYS_sendmmsg, "sendmmsg"),
    (libc::SYS_recvmmsg, "recvmmsg"), (libc::SYS_shutdown, "shutdown"), (libc::SYS_bind, "bind"),
    (libc::SYS_listen, "listen"), (libc::SYS_getsockname, "getsockname"),
    (libc::SYS_getpeername, "getpeername"), (libc::SYS_socketpair, "socketpair"),
    (libc::SYS_setsockopt, "setsockopt"), (libc::SYS_getsockopt, "getsockopt"), (libc::SYS_clone, "clone"),
    (libc::SYS_clone3, "clone3"), (libc::SYS_execve, "execve"), (libc::SYS_execveat, "execveat"),
    (libc::SYS_exit, "exit"), (libc::SYS_exit_group, "exit_group"), (libc::SYS_wait4, "wait4"),
    (libc::SYS_waitid, "waitid"), (libc::SYS_kill, "kill"), (libc::SYS_tkill, "tkill"),
    (libc::SYS_tgkill, "tgkill"), (libc::SYS_uname, "uname"), (libc::SYS_msgget, "msgget"),
    (libc::SYS_fcntl, "fcntl"), (libc::SYS_flock, "flock"), (libc::SYS_fsync, "fsync"),
    (libc::SYS_ftruncate, "ftruncate"), (libc::SYS_getdents64, "getdents64"), (libc::SYS_getcwd, "getcwd"),
    (libc::SYS_chdir, "chdir"), (libc::SYS_fchdir, "fchdir"), (libc::SYS_openat, "openat"),
    (libc::SYS_openat2, "openat2"), (libc::SYS_mkdirat, "mkdirat"), (libc::SYS_unlinkat, "unlinkat"),
    (libc::SYS_renameat2, "renameat2"), (libc::SYS_linkat, "linkat"), (libc::SYS_symlinkat, "symlinkat"),
    (libc::SYS_readlinkat, "readlinkat"), (libc::SYS_fchmodat, "fchmodat"), (libc::SYS_fchownat, "fchownat"),
    (libc::SYS_faccessat, "faccessat"), (libc::SYS_faccessat2, "faccessat2"),
    (libc::SYS_newfstatat, "newfstatat"), (libc::SYS_statx, "statx"), (libc::SYS_statfs, "statfs"),
    (libc::SYS_fstatfs, "fstatfs"), (libc::SYS_umask, "umask"), (libc::SYS_gettimeofday, "gettimeofday"),
    (libc::SYS_getrlimit, "getrlimit"), (libc::SYS_prlimit64, "prlimit64"),
    (libc::SYS_getrusage, "getrusage"), (libc::SYS_sysinfo, "sysinfo"), (libc::SYS_ptrace, "ptrace"),
    (libc::SYS_getuid, "getuid"), (libc::SYS_getgid, "getgid"), (libc::SYS_geteuid, "geteuid"),
    (libc::SYS_getegid, "getegid"), (libc::SYS_setuid, "setuid"), (libc::SYS_setgid, "setgid"),
    (libc::SYS_setresuid, "setresuid"), (libc::SYS_setresgid, "setresgid"),
    (libc::SYS_setgroups, "setgroups"), (libc::SYS_setsid, "setsid"), (libc::SYS_setpgid, "setpgid"),
    (libc::SYS_getppid, "getppid"), (libc::SYS_capget, "capget"), (libc::SYS_capset, "capset"),
    (libc::SYS_personality, "personality"), (libc::SYS_prctl, "prctl"), (libc::SYS_setrlimit, "setrlimit"),
    (libc::SYS_chroot, "chroot"), (libc::SYS_mount, "mount"), (libc::SYS_umount2, "umount2"),
    (libc::SYS_pivot_root, "pivot_root"), (libc::SYS_mount_setattr, "mount_setattr"),
    (libc::SYS_fsopen, "fsopen"), (libc::SYS_fsmount, "fsmount"), (libc::SYS_move_mount, "move_mount"),
    (libc::SYS_open_tree, "open_tree"), (libc::SYS_unshare, "unshare"), (libc::SYS_setns, "setns"),
    (libc::SYS_init_module, "init_module"), (libc::SYS_finit_module, "finit_module"),
    (libc::SYS_delete_module, "delete_module"), (libc::SYS_kexec_load, "kexec_load"),
    (libc::SYS_reboot, "reboot"), (libc::SYS_sethostname, "sethostname"), (libc::SYS_syslog, "syslog"),
    (libc::SYS_bpf, "bpf"), (libc::SYS_perf_event_open, "perf_event_open"),
    (libc::SYS_userfaultfd, "userfaultfd"), (libc::SYS_keyctl, "keyctl"), (libc::SYS_add_key, "add_key"),
    (libc::SYS_request_key, "request_key"), (libc::SYS_io_uring_setup, "io_uring_setup"),
    (libc::SYS_io_uring_enter, "io_uring_enter"), (libc::SYS_memfd_create, "memfd_create"),
    (libc::SYS_memfd_secret, "memfd_secret"), (libc::SYS_epoll_create1, "epoll_create1"),
    (libc::SYS_epoll_ctl, "epoll_ctl"), (libc::SYS_epoll_pwait, "epoll_pwait"),
    (libc::SYS_epoll_pwait2, "epoll_pwait2"), (libc::SYS_eventfd2, "eventfd2"),
    (libc::SYS_signalfd4, "signalfd4"), (libc::SYS_timerfd_create, "timerfd_create"),
    (libc::SYS_timerfd_settime, "timerfd_settime"), (libc::SYS_inotify_init1, "inotify_init1"),
    (libc::SYS_fanotify_init, "fanotify_init"), (libc::SYS_pidfd_open, "pidfd_open"),
    (libc::SYS_pidfd_getfd, "pidfd_getfd"), (libc::SYS_pidfd_send_signal, "pidfd_send_signal"),
    (libc::SYS_process_vm_readv, "process_vm_readv"), (libc::SYS_process_vm_writev, "process_vm_writev"),
    (libc::SYS_clock_settime, "clock_settime"), (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_clock_gettime, "clock_gettime"), (libc::SYS_sched_setaffinity, "sched_setaffinity"),
    (libc::SYS_sched_getaffinity, "sched_getaffinity"), (libc::SYS_sched_setscheduler, "sched_setscheduler"),
    (libc::SYS_futex, "futex"), (libc::SYS_set_robust_list, "set_robust_list"), (libc::SYS_rseq, "rseq"),
    (libc::SYS_landlock_restrict_self, "landlock_restrict_self"), (libc::SYS_seccomp, "seccomp"),
    (libc::SYS_getrandom, "getrandom"), (libc::SYS_mlock, "mlock"), (libc::SYS_mlockall, "mlockall"),
    (libc::SYS_mbind, "mbind"), (libc::SYS_msync, "msync"), (libc::SYS_fallocate, "fallocate"),
    (libc::SYS_splice, "splice"), (libc::SYS_tee, "tee"), (libc::SYS_vmsplice, "vmsplice"),
    (libc::SYS_sync, "sync"), (libc::SYS_swapon, "swapon"), (libc::SYS_quotactl, "quotactl"),
    (libc::SYS_name_to_handle_at, "name_to_handle_at"), (libc::SYS_open_by_handle_at, "open_by_handle_at"),
    (libc::SYS_copy_file_range, "copy_file_range"), (libc::SYS_close_range, "close_range"),
    (libc::SYS_ppoll, "ppoll"), (libc::SYS_pselect6, "pselect6"), (libc::SYS_sigaltstack, "sigaltstack"),
    (libc::SYS_gettid, "gettid"), (libc::SYS_getpriority, "getpriority"),
    (libc::SYS_setpriority, "setpriority"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_open, "open"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_stat, "stat"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_lstat, "lstat"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_poll, "poll"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_access, "access"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_pipe, "pipe"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_select, "select"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_dup2, "dup2"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_pause, "pause"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_alarm, "alarm"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_fork, "fork"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_vfork, "vfork"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_rename, "rename"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_mkdir, "mkdir"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_rmdir, "rmdir"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_creat, "creat"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_link, "link"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_unlink, "unlink"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_symlink, "symlink"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_readlink, "readlink"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_chmod, "chmod"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_chown, "chown"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_arch_prctl, "arch_prctl"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_time, "time"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_epoll_create, "epoll_create"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_epoll_wait, "epoll_wait"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_eventfd, "eventfd"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_signalfd, "signalfd"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_inotify_init, "inotify_init"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_iopl, "iopl"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_ioperm, "ioperm"),
    #[cfg(target_arch = "x86_64")] (libc::SYS_modify_ldt, "modify_ldt"),
];
