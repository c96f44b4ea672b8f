//! Landlock: limits access to the file system, the network and other processes.

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::Wall;

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
