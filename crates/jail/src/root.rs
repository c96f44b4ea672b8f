//! An empty root directory.

use std::io;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
};

/// Replaces all mounts by an empty read-only directory. This process must have a mount namespace of
/// its own.
pub fn leave() -> io::Result<()> {
    let propagation = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", propagation)?;
    let system = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("size", "4096"), ("nr_inodes", "1"), ("mode", "0555")] {
        rustix::mount::fsconfig_set_string(&system, key, value)?;
    }
    rustix::mount::fsconfig_create(&system)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = rustix::mount::fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&root, "", CWD, "/", flags)?;
    rustix::process::fchdir(&root)?;
    match rustix::process::pivot_root(".", ".") {
        // The old root is mounted over the new one.
        Ok(()) => rustix::mount::unmount(".", UnmountFlags::DETACH)?,
        // The first root of a machine cannot be left. Without capabilities a chroot is final, too.
        Err(_) => rustix::process::chroot(".")?,
    }
    Ok(rustix::process::chdir("/")?)
}
