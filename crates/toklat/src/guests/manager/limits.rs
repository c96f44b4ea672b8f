//! Limits of guests' memory.

use guest::OTHER_PROCESSES;
use jail::Wall;

use super::Manager;
use crate::guests::groups::{Limited, Request};
use crate::guests::process::End;

impl Manager {
    /// Asks for a group for a guest's new process.
    pub(super) fn limit(&self, index: usize) {
        let unit = &self.units[index];
        let Some(process) = &unit.process else { return };
        let Some(child) = &process.child else { return };
        self.groups.ask(Request {
            unit: index,
            turn: unit.turn,
            name: format!("{}.{}", unit.name, unit.turn),
            bytes: self.kinds[unit.kind].memory(unit.ports.len()),
            processes: OTHER_PROCESSES + unit.ports.len() as u64,
            pid: child.pid(),
            member: process.member.clone(),
        });
    }

    /// Notes which processes are in their groups.
    pub(super) fn limited(&mut self) {
        for Limited { unit, turn, group } in self.groups.take() {
            let unit = &mut self.units[unit];
            if unit.turn == turn && unit.process.is_some() {
                unit.group = Some(group);
                unit.note_group();
            }
        }
    }

    /// Says that a guest ended because it had no more memory.
    pub(super) fn end_by_limit(&self, index: usize, end: End) -> End {
        let unit = &self.units[index];
        let was_killed = unit.group.as_ref().is_some_and(|group| group.was_killed());
        if end.success || unit.stopped || !was_killed {
            return end;
        }
        let memory = client::table::binary_bytes(self.kinds[unit.kind].spec.memory);
        End::failed(format!("needed more than its {memory} of memory, and was killed"))
    }
}

impl crate::guests::unit::Unit {
    /// Shows the group of the guest among its walls, once it has some.
    pub fn note_group(&mut self) {
        if self.group.is_some() && self.walls.stands(Wall::MemoryLimit) {
            self.walls.standing.retain(|wall| *wall != Wall::MemoryLimit);
            self.walls.note(Wall::MemoryGroup, Ok(()));
        }
    }
}
