//! What a program in a cell cannot do before it is sealed.
//!
//! It may read files, start a few threads and processes, and load what it needs. It writes nowhere
//! but to a small directory of its own, makes no socket and no namespace, and has no part of the
//! kernel that a program of frames has no use for. Programs that know nothing of cells get the same
//! lists ([`Confinement`](crate::child::Confinement)), with sockets.
#![allow(unsafe_code, reason = "calls that rustix does not name")]

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::sync::OnceLock;

use rustix::mount::MountFlags;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// The directory for temporary files, which is the process's own.
pub const TEMPORARY: &str = "/dev/shm";
const TEMPORARY_PATH: &CStr = c"/dev/shm";
/// The size of that directory.
const OPTIONS: &CStr = c"size=1m,nr_inodes=64,mode=1777";
/// The size of the largest file that it may write.
pub const MAX_FILE: u64 = 1 << 20;

/// Calls that fail by `EPERM`: what no program needs before it serves, and what reaches far into
/// the kernel.
const REFUSED: &[i64] = &[
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_mknodat,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_personality,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_settimeofday,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Calls that make namespaces, and change mounts of this one.
const NEW_NAMESPACES: &[i64] = &[libc::SYS_unshare, libc::SYS_mount_setattr, libc::SYS_open_tree];
/// The bit in a call's number that some kernels for x86-64 take for another interface (x32). Its
/// calls must not pass by the list.
const X32: i64 = 0x4000_0000;
/// The flags of `clone` that make namespaces.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// The families of sockets that are common.
const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Filters of system calls, or why they cannot be made.
pub type Filters = Result<[BpfProgram; 2], String>;

/// What a program may do beside reading files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// It may make sockets of the common families. Otherwise it may make none.
    pub sockets: bool,
    /// It may make namespaces: for copies of itself, or to confine itself.
    pub namespaces: bool,
}

/// The filters for such a program. They are made once, before a new process exists, which must not
/// allocate.
pub fn filters(first: First) -> &'static Filters {
    static FILTERS: [OnceLock<Filters>; 4] = [const { OnceLock::new() }; 4];
    let place = usize::from(first.sockets) | usize::from(first.namespaces) << 1;
    FILTERS[place].get_or_init(|| compile(first).map_err(|error| error.to_string()))
}

fn compile(first: First) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let refused = REFUSED.iter().chain(NEW_NAMESPACES.iter().filter(|_| !first.namespaces));
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        refused.flat_map(|call| [*call, X32 | *call]).map(|call| (call, Vec::new())).collect();
    let first_argument = |is: SeccompCmpOp, value: libc::c_int| {
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, is, u64::from(value.cast_unsigned()))
    };
    let families = match first.sockets {
        true => {
            let others = FAMILIES.map(|family| first_argument(SeccompCmpOp::Ne, family));
            vec![SeccompRule::new(others.into_iter().collect::<Result<_, _>>()?)?]
        }
        false => Vec::new(),
    };
    rules.extend([(libc::SYS_socket, families), (X32 | libc::SYS_socket, Vec::new())]);
    if !first.namespaces {
        let makes = |flag: libc::c_int| {
            let has = SeccompCmpOp::MaskedEq(u64::from(flag.cast_unsigned()));
            SeccompRule::new(vec![first_argument(has, flag)?])
        };
        let clones = NAMESPACES.into_iter().map(makes).collect::<Result<_, _>>()?;
        rules.extend([(libc::SYS_clone, clones), (X32 | libc::SYS_clone, Vec::new())]);
    }
    let program = |rules, errno: i32| -> Result<BpfProgram, seccompiler::BackendError> {
        let arch = TargetArch::try_from(std::env::consts::ARCH)?;
        let refuse = SeccompAction::Errno(errno.cast_unsigned());
        SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?.try_into()
    };
    // A filter cannot look at the flags of `clone3`. Programs use `clone` if the kernel lacks it.
    let newer = [libc::SYS_clone3, X32 | libc::SYS_clone3];
    let newer = newer.into_iter().map(|call| (call, Vec::new())).collect();
    Ok([program(rules, libc::EPERM)?, program(newer, libc::ENOSYS)?])
}

/// Installs the filters in this process, which has one thread, and allocates nothing. A kernel that
/// has no filters refuses the list of a sealed process, too, and that is shown.
pub fn install(filters: &Filters) -> io::Result<()> {
    for filter in filters.as_ref().into_iter().flatten() {
        match seccompiler::apply_filter(filter) {
            Err(seccompiler::Error::Seccomp(error)) if is_missing(&error) => {}
            Err(seccompiler::Error::Seccomp(error) | seccompiler::Error::Prctl(error)) => {
                return Err(error);
            }
            Err(_) => return Err(io::ErrorKind::InvalidInput.into()),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// True if the kernel has no filters.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL))
}

/// Makes all mounts of this mount namespace read-only, except that of /proc, where users of new
/// namespaces are mapped; and mounts a small directory for temporary files.
pub fn furnish() -> io::Result<()> {
    set_mount(c"/", libc::AT_RECURSIVE, (libc::MOUNT_ATTR_RDONLY, 0))?;
    set_mount(c"/proc", 0, (0, libc::MOUNT_ATTR_RDONLY))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    match rustix::mount::mount(c"tmpfs", TEMPORARY_PATH, c"tmpfs", flags, Some(OPTIONS)) {
        Ok(()) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sets and clears attributes of a mount, and separates it from other namespaces
/// (mount_setattr(2)).
fn set_mount(path: &CStr, flags: libc::c_int, (set, clear): (u64, u64)) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: set,
        attr_clr: clear,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    let (at, len) = (libc::AT_FDCWD, size_of_val(&attributes));
    // SAFETY: path and structure live during the call.
    let done = unsafe {
        libc::syscall(libc::SYS_mount_setattr, at, path.as_ptr(), flags, &raw const attributes, len)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// True if the kernel counts the processes of a user in each user namespace by themselves, since
/// version 5.14. Others count all processes of the user. Call it before a new process exists.
pub fn counts_processes() -> bool {
    static COUNTS: OnceLock<bool> = OnceLock::new();
    *COUNTS.get_or_init(|| {
        let name = rustix::system::uname();
        is_since(&name.release().to_string_lossy(), [5, 14])
    })
}

/// True if a release of the kernel (`6.1.0-13-amd64`) is this version or a later one.
fn is_since(release: &str, version: [u32; 2]) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let [Some(Ok(major)), Some(Ok(minor))] = [numbers.next(), numbers.next()] else { return false };
    [major, minor] >= version
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_the_kernel_are_compared_as_numbers() {
        for (release, is) in [
            ("6.1.0-13-amd64", true),
            ("5.14.0", true),
            ("5.4.0-99-generic", false),
            ("4.19.0", false),
            ("6", false),
            ("", false),
        ] {
            assert_eq!(is_since(release, [5, 14]), is, "{release}");
        }
    }

    #[test]
    fn the_filters_can_be_made() {
        for number in 0..4 {
            let first = First { sockets: number & 1 == 1, namespaces: number & 2 == 2 };
            assert!(filters(first).as_ref().unwrap().iter().all(|filter| !filter.is_empty()));
        }
    }
}
