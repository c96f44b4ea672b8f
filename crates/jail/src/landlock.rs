//! Landlock: limits access to the file system, the network and other processes.

#![allow(unsafe_code, reason = "what the crate does with allocations, a child does without")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, NetPort,
    RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    Scope, path_beneath_rules,
};

use super::{Wall, Walls};

/// The newest version of Landlock that the crate knows.
const NEWEST: ABI = ABI::V6;

/// Restricts what is `wanted` (files, network, scopes), as far as the kernel can. Returns the
/// result for each.
pub fn restrict([files, network, scope]: [bool; 3]) -> Vec<(Wall, Result<(), String>)> {
    let wanted = [
        (files, Wall::LandlockFiles, ABI::V1),
        (network, Wall::LandlockNetwork, ABI::V4),
        (scope, Wall::LandlockScope, ABI::V6),
    ];
    let status = [files, network, scope].contains(&true).then(|| raise([files, network, scope]));
    let note = |(wanted, wall, since): (bool, Wall, ABI)| {
        let status = status.as_ref().filter(|_| wanted)?;
        Some((wall, judge(status, since)))
    };
    wanted.into_iter().filter_map(note).collect()
}

/// Returns true if the kernel has Landlock and it is enabled.
#[must_use]
pub fn is_available() -> bool {
    let strict = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    strict.handle_access(AccessFs::from_all(ABI::V1)).and_then(|rules| rules.create()).is_ok()
}

fn raise([files, network, scope]: [bool; 3]) -> Result<RestrictionStatus, RulesetError> {
    let mut rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    if files {
        rules = rules.handle_access(AccessFs::from_all(NEWEST))?;
    }
    if network {
        rules = rules.handle_access(AccessNet::from_all(NEWEST))?;
    }
    if scope {
        rules = rules.scope(Scope::from_all(NEWEST))?;
    }
    // A process could fill the audit log with refusals.
    rules.create()?.log_same_exec(false)?.restrict_self()
}

/// Rules for a program that reads below some places, and writes below others, as far as the kernel
/// can. Places that do not exist are left out. The program listens at no TCP port.
pub fn rules_for(reads: &[&Path], writes: &[&Path]) -> Result<OwnedFd, String> {
    let make = || -> Result<Option<OwnedFd>, RulesetError> {
        let rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))?
            .handle_access(AccessNet::BindTcp)?
            .scope(Scope::from_all(NEWEST))?
            .create()?
            // A connection whose own address is chosen gets any free port.
            .add_rule(NetPort::new(0, AccessNet::BindTcp))?
            .add_rules(path_beneath_rules(reads, AccessFs::from_read(NEWEST)))?
            .add_rules(path_beneath_rules(writes, AccessFs::from_all(NEWEST)))?
            .add_rules(path_beneath_rules(["/dev/null"], AccessFs::from_file(NEWEST)))?;
        Ok(rules.into())
    };
    let made = make().map_err(|error| error.to_string())?;
    made.ok_or_else(|| "the kernel has no Landlock, or a container forbids it".to_owned())
}

/// Restricts this thread by these rules; allocates nothing. Call it after the thread has given up
/// new privileges.
pub fn enforce(rules: &OwnedFd) -> io::Result<()> {
    // SAFETY: the call takes numbers alone.
    match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Notes the walls of rules for files, which were enforced or not. TCP is closed in part only, so
/// that wall is not among them.
pub fn note_files(walls: &mut Walls, done: &Result<(), String>) {
    /// Asks for the version (landlock_create_ruleset(2)).
    const VERSION: libc::c_long = 1;
    // SAFETY: without a structure the call only returns a number.
    let has = unsafe {
        let none = std::ptr::null::<u8>();
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, VERSION)
    };
    for (wall, since) in [(Wall::LandlockFiles, ABI::V1), (Wall::LandlockScope, ABI::V6)] {
        let since = since as libc::c_long;
        let done = done.clone().and_then(|()| match has >= since {
            true => Ok(()),
            false => {
                Err(format!("the kernel's Landlock has version {has}, and this needs {since}"))
            }
        });
        walls.note(wall, done);
    }
}

/// Tells whether the restrictions of version `since` of Landlock are in force.
fn judge(status: &Result<RestrictionStatus, RulesetError>, since: ABI) -> Result<(), String> {
    let status = status.as_ref().map_err(ToString::to_string)?;
    match (&status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, LandlockStatus::Available { .. }) => {
            Err("the kernel restricted nothing".into())
        }
        (_, LandlockStatus::Available { effective_abi, .. }) if effective_abi >= since => Ok(()),
        (_, LandlockStatus::Available { effective_abi, .. }) => {
            let (has, needs) = (effective_abi as i32, since as i32);
            Err(format!("the kernel's Landlock has version {has}, and this needs {needs}"))
        }
        (_, LandlockStatus::NotEnabled) => {
            Err("Landlock is not enabled (lsm= of the kernel)".into())
        }
        (_, LandlockStatus::NotImplemented) => {
            Err("the kernel has no Landlock, or a container forbids it".into())
        }
    }
}
