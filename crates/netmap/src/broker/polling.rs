//! Interfaces in switches that are polled (`NETMAP_REQ_VALE_POLLING_ENABLE`): the workers of the
//! switch, which move the interface's frames, do not sleep.

use rustix::io::Errno;

use super::name::Name;
use super::{Broker, Call, Switches};
use crate::abi::{ValePolling, polling};

impl<S: Switches> Broker<S> {
    /// Begins to poll the interface that the request names, or ends it.
    pub(super) async fn polling(&mut self, mut call: Call<'_>, on: bool) -> Result<(), Errno> {
        let asked: ValePolling = call.body()?;
        let Name::Vale { switch, port } = Name::parse(call.name()?)? else {
            return Err(Errno::INVAL);
        };
        self.forget_unplugged(&call).await;
        let place = (switch, port);
        if !self.switches.plugged().await.contains(&place) {
            let exists = self.find_vale(&place.0, &place.1)?.is_some();
            return Err(if exists { Errno::OPNOTSUPP } else { Errno::NXIO });
        }
        if self.polled.contains(&place) == on {
            return Err(Errno::FAULT);
        }
        let (switch, ifname) = &place;
        if on {
            let queues = queues(&asked, self.switches.cpus())?;
            self.switches.poll(call.who(), switch, ifname, Some(queues)).await?;
            self.polled.insert(place);
        } else {
            self.polled.remove(&place);
            let ended = self.end_polling(&call, switch, ifname).await;
            if ended.is_err() {
                self.polled.insert(place);
            }
            ended?;
        }
        call.answer(&asked);
        Ok(())
    }

    /// Returns true if an interface in a switch is polled.
    pub(super) fn is_polled(&self, switch: &str, ifname: &str) -> bool {
        self.polled.iter().any(|(s, i)| s == switch && i == ifname)
    }

    /// Ends the polling of interfaces that left their switches by other ways.
    async fn forget_unplugged(&mut self, call: &Call<'_>) {
        let plugged = self.switches.plugged().await;
        let gone: Vec<_> =
            self.polled.iter().filter(|place| !plugged.contains(place)).cloned().collect();
        for (switch, ifname) in gone {
            self.polled.remove(&(switch.clone(), ifname.clone()));
            // The switch may be gone, too.
            let _ = self.end_polling(call, &switch, &ifname).await;
        }
    }

    /// Has a switch sleep again if none of its interfaces is polled any more.
    async fn end_polling(&self, call: &Call<'_>, switch: &str, ifname: &str) -> Result<(), Errno> {
        if self.polled.iter().any(|(other, _)| other == switch) {
            return Ok(());
        }
        self.switches.poll(call.who(), switch, ifname, None).await
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
