//! Interfaces in switches that are polled (`NETMAP_REQ_VALE_POLLING_ENABLE`): the workers of the
//! switch, which move the interface's frames, do not sleep.

use rustix::io::Errno;

use super::Broker;
use super::effect::{Effect, Place};
use super::name::Name;
use super::task::{Step, Task, Then};
use crate::abi::{ValePolling, polling};

impl Broker {
    /// Begins to poll the interface that the request names, or ends it.
    pub(super) fn polling(&mut self, task: &mut Task, on: bool) -> Result<(), Errno> {
        let asked: ValePolling = task.call.body()?;
        let Name::Vale { switch, port } = Name::parse(task.call.name()?)? else {
            return Err(Errno::INVAL);
        };
        self.forget_unplugged(task);
        let place = Place::new(switch, port);
        if !self.plugged.contains(&place) {
            let exists = self.find_vale(task.call.uid, &place.switch, &place.port)?.is_some();
            return Err(if exists { Errno::OPNOTSUPP } else { Errno::NXIO });
        }
        if self.polled.contains(&place) == on {
            return Err(Errno::FAULT);
        }
        let who = task.call.who();
        if on {
            let queues = Some(queues(&asked, task.call.facts.cpus)?);
            let effect = Effect::Poll { who, place: place.clone(), queues };
            task.steps.push_back(Step::Ask(effect, Then::Polled(place, true)));
        } else if self.polled.iter().filter(|other| other.switch == place.switch).count() > 1 {
            self.polled.remove(&place);
        } else {
            let effect = Effect::Poll { who, place: place.clone(), queues: None };
            task.steps.push_back(Step::Ask(effect, Then::Polled(place, false)));
        }
        task.call.answer(&asked);
        Ok(())
    }

    /// Returns true if an interface in a switch is polled.
    pub(super) fn is_polled(&self, place: &Place) -> bool {
        self.polled.contains(place)
    }

    /// Ends the polling of interfaces that left their switches by other ways.
    fn forget_unplugged(&mut self, task: &mut Task) {
        let is_gone = |place: &&Place| !self.plugged.contains(place);
        let gone: Vec<Place> = self.polled.iter().filter(is_gone).cloned().collect();
        for place in gone {
            self.polled.remove(&place);
            if self.polled.iter().all(|other| other.switch != place.switch) {
                // The switch may be gone, too.
                let (who, queues) = (task.call.who(), None);
                task.steps.push_back(Step::Tell(Effect::Poll { who, place, queues }));
            }
        }
    }
}

/// Returns how many receive queues the interface must have at least.
fn queues(asked: &ValePolling, cpus: u32) -> Result<u32, Errno> {
    // As in the kernel, one CPU is left to others, if there are several.
    if asked.cpus == 0 || asked.cpus >= cpus.max(2) || asked.first_cpu >= cpus {
        return Err(Errno::INVAL);
    }
    match asked.mode {
        polling::SINGLE_CPU if asked.cpus == 1 => Ok(1),
        polling::MULTI_CPU => Ok(asked.first_cpu + asked.cpus),
        _ => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_and_rings_are_checked_as_in_the_kernel() {
        let of = |mode, first_cpu, cpus, machine| {
            queues(&ValePolling { mode, first_cpu, cpus, pad: 0 }, machine)
        };
        let no = Err(Errno::INVAL);
        assert_eq!([of(1, 0, 1, 2), of(1, 1, 1, 2), of(1, 0, 1, 1)], [Ok(1); 3]);
        assert_eq!([of(2, 0, 1, 4), of(2, 2, 1, 4), of(2, 1, 3, 4)], [Ok(1), Ok(3), Ok(4)]);
        assert_eq!([of(0, 0, 1, 2), of(3, 0, 1, 2), of(1, 0, 2, 4), of(2, 0, 4, 4)], [no; 4]);
        assert_eq!([of(1, 0, 0, 2), of(1, 2, 1, 2), of(1, u32::MAX, 1, 2)], [no; 3]);
        assert_eq!(of(2, u32::MAX, u32::MAX, 2), no);
    }
}
