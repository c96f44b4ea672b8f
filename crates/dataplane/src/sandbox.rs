//! The system calls that a data process may make once it runs: seccomp filters over all its
//! threads.
//!
//! A data process parses what clients write, so it is the process that an intruder would take over.
//! After its start it needs no files, no network and no processes: it uses the descriptors that the
//! supervisor sends. It may read, write, wait, make and map memory, start threads, and answer on
//! its socket; nothing else.
//!
//! There are three filters; the kernel applies the strictest of their answers:
//!
//! - A call that is not on the list fails with `EPERM`. A library may try to open a file on some
//!   rare path (a backtrace that looks for symbols, `malloc` that counts processors). Such code
//!   handles a refusal, and the switch should not end because of it.
//! - Running a program or accessing other processes ends the process with SIGSYS, which its
//!   supervisor sees. No path of ours does that, so an intruder does.
//! - `clone3` fails with `ENOSYS`: a filter cannot see its flags, and the C library falls back to
//!   `clone`, which is allowed for threads only.
//!
//! No memory can be made executable. Violations are not logged, because an intruder could fill a
//! disk with them; `strace` shows them.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// The environment variable that disables these filters if it is `off`.
pub const SWITCH: &str = "TOKLAT_SANDBOX";

/// The system call filters could not be installed.
#[derive(Debug, thiserror::Error)]
#[error(
    "Cannot restrict the system calls of the data process; where the kernel or a container does not \
     allow seccomp filters, set {SWITCH}=off to go without"
)]
pub struct SandboxError(#[source] seccompiler::Error);

/// Linux 6.16; libc does not name it yet.
const SO_PASSRIGHTS: i32 = 83;
/// Bytes of the largest memory file that a front end gets to keep.
const MAX_KEPT_MEMORY: u64 = 1 << 20;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Restricts all present and future threads of this process, for good.
///
/// # Errors
/// [`SandboxError`] when the kernel does not support it.
pub fn enter() -> Result<(), SandboxError> {
    let enter = || {
        // The list comes last, because it does not allow further filters.
        for filter in [deadly()?, without_clone3()?, list()?] {
            seccompiler::apply_filter_all_threads(&filter)?;
        }
        Ok(())
    };
    enter().map_err(SandboxError)
}

/// Has this thread, and those that it starts, wake from a timed sleep when the time has come. By
/// default the kernel may let 50 us more pass. The process may not ask for it once it is confined.
pub fn be_punctual() {
    // Where a kernel refuses, timers are only less exact.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
}

/// True unless the environment says otherwise.
#[must_use]
pub fn is_wanted() -> bool {
    std::env::var_os(SWITCH).is_none_or(|value| value != "off")
}

fn compile(
    rules: Rules,
    others: SeccompAction,
    these: SeccompAction,
) -> Result<BpfProgram, seccompiler::Error> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    Ok(SeccompFilter::new(rules, others, these, arch)?.try_into()?)
}

fn deadly() -> Result<BpfProgram, seccompiler::Error> {
    let calls = [
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
    ];
    let rules = calls.map(|call| (call, Vec::new())).into();
    compile(rules, SeccompAction::Allow, SeccompAction::KillProcess)
}

fn without_clone3() -> Result<BpfProgram, seccompiler::Error> {
    let rules = [(libc::SYS_clone3, Vec::new())].into();
    let refused = SeccompAction::Errno(libc::ENOSYS as u32);
    compile(rules, SeccompAction::Allow, refused)
}

fn list() -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: Rules = UNCONDITIONAL.iter().map(|call| (*call, Vec::new())).collect();
    rules.extend(conditional()?);
    compile(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)
}

/// The calls that are allowed with certain arguments only.
fn conditional() -> Result<Rules, seccompiler::Error> {
    let condition = |argument, operator, value: u64| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
    };
    let long = |argument, operator, value: u64| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, value)
    };
    let when =
        |argument, operator, value| SeccompRule::new(vec![condition(argument, operator, value)?]);
    let equals = |argument, value: i32| condition(argument, SeccompCmpOp::Eq, value as u64);
    let is = |argument, value: i32| when(argument, SeccompCmpOp::Eq, value as u64);
    let has = |argument, bit: i32, value: i32| {
        when(argument, SeccompCmpOp::MaskedEq(bit as u64), value as u64)
    };
    let not_executable = || has(2, libc::PROT_EXEC, 0);
    let fcntl = [
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_GETFL,
        libc::F_SETFL,
        libc::F_DUPFD_CLOEXEC,
        libc::F_GET_SEALS,
        libc::F_ADD_SEALS,
    ];
    let option = |option| SeccompRule::new(vec![equals(1, libc::SOL_SOCKET)?, equals(2, option)?]);
    let fcntl: Result<Vec<_>, _> = fcntl.into_iter().map(|command| is(1, command)).collect();
    Ok([
        (libc::SYS_mmap, vec![not_executable()?]),
        (libc::SYS_mprotect, vec![not_executable()?]),
        (libc::SYS_clone, vec![has(0, libc::CLONE_THREAD, libc::CLONE_THREAD)?]),
        // To name threads.
        (libc::SYS_prctl, vec![is(0, libc::PR_SET_NAME)?]),
        // For abort(3): only to this process.
        (libc::SYS_tgkill, vec![is(0, std::process::id() as i32)?]),
        (
            libc::SYS_setsockopt,
            vec![
                // The timeout of sending an answer.
                option(libc::SO_SNDTIMEO)?,
                option(libc::SO_SNDTIMEO_NEW)?,
                // The timeout of a close.
                option(libc::SO_LINGER)?,
            ],
        ),
        // The kind of a socket, and the user at its other end.
        (
            libc::SYS_getsockopt,
            vec![
                option(libc::SO_TYPE)?,
                option(libc::SO_DOMAIN)?,
                option(libc::SO_PEERCRED)?,
                option(SO_PASSRIGHTS)?,
            ],
        ),
        // The context switches of the calling thread.
        (libc::SYS_getrusage, vec![is(0, libc::RUSAGE_THREAD)?]),
        // The affinity of the calling thread only.
        (libc::SYS_sched_setaffinity, vec![is(0, 0)?]),
        // To inspect a descriptor.
        (libc::SYS_statx, vec![is(2, libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC)?]),
        (libc::SYS_fcntl, fcntl?),
        // A memory file that a front end keeps: small, of ordinary pages, sealed at once.
        (
            libc::SYS_memfd_create,
            vec![is(1, (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as i32)?],
        ),
        (
            libc::SYS_fallocate,
            vec![SeccompRule::new(vec![
                equals(1, 0)?,
                long(2, SeccompCmpOp::Eq, 0)?,
                long(3, SeccompCmpOp::Le, MAX_KEPT_MEMORY)?,
            ])?],
        ),
    ]
    .into())
}

const UNCONDITIONAL: &[i64] = &[
    // Existing descriptors: frames, kicks, files, the control socket.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_fstat,
    // On a full disk, a capture is truncated after its last packet.
    libc::SYS_ftruncate,
    // Whether guests' memory is memory.
    libc::SYS_fstatfs,
    libc::SYS_close,
    // Waiting.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_create1,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_getrandom,
    // Threads and signals.
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_geteuid,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// A timed sleep is late by the slack of its thread, which threads have from the one that
    /// starts them.
    #[test]
    fn threads_that_start_later_have_exact_timers() {
        let started = std::thread::spawn(|| {
            be_punctual();
            let slack = || rustix::thread::current_timer_slack().unwrap();
            (slack(), std::thread::spawn(slack).join().unwrap())
        });
        assert_eq!(started.join().unwrap(), (1, 1));
    }
}
