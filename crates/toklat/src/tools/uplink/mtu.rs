//! The MTU that guests are told: passt says it in DHCP (option 26) and in router advertisements.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use client::name::SwitchName;
use client::{Client, Global};

use super::{PORT, UplinkArgs};
use crate::api::PortInfo;

/// The MTU of Ethernet.
const USUAL: u16 = 1500;
/// For how many nanoseconds the daemon's answer is reused. Guests can cause questions, so these
/// must be bounded.
const FRESH: u64 = 1_000_000_000;

/// How long guests wait for the daemon's answer: they share the uplink's thread.
const PATIENCE: Duration = Duration::from_millis(200);

/// The MTU for guests.
pub struct Mtu<'a> {
    global: &'a Global,
    switch: &'a SwitchName,
    given: Option<u16>,
    /// The MTU that fits the switch, and when the daemon reported it.
    last: Option<(u16, u64)>,
    /// Where an answer comes that was not there in time.
    late: Option<Receiver<Option<u16>>>,
}

impl<'a> Mtu<'a> {
    pub const fn new(global: &'a Global, args: &'a UplinkArgs) -> Self {
        Self { global, switch: &args.switch, given: args.mtu, last: None, late: None }
    }

    /// Returns the MTU at this time. If the daemon does not answer in time, returns the last one,
    /// or the usual one.
    pub fn at(&mut self, now: u64) -> u16 {
        if let Some(given) = self.given {
            return given;
        }
        let last = self.last;
        if let Some((mtu, _)) = last.filter(|(_, at)| now.saturating_sub(*at) < FRESH) {
            return mtu;
        }
        let known = last.map_or(USUAL, |(mtu, _)| mtu);
        let mtu = self.ask().unwrap_or(known);
        self.last = Some((mtu, now));
        mtu
    }

    /// Asks the daemon in a thread of its own: it may be stopped. Never asks twice at once.
    fn ask(&mut self) -> Option<u16> {
        let answer = self.late.take().unwrap_or_else(|| {
            let (answers, answer) = channel();
            let (global, path) = (self.global.clone(), format!("{}/ports", self.switch.path()));
            let asks = move || {
                let ports = Client::connect(&global)
                    .and_then(|client| client.without_progress().get::<Vec<PortInfo>>(&path));
                // If the uplink has ended, the channel is closed.
                let _ = answers.send(ports.ok().map(|ports| fits(&ports)));
            };
            // Without a thread there is no answer.
            let _ = std::thread::Builder::new().spawn(asks);
            answer
        });
        match answer.recv_timeout(PATIENCE) {
            Ok(mtu) => mtu,
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                self.late = Some(answer);
                None
            }
        }
    }
}

/// The largest MTU, [`USUAL`] at most, of which packets fit the uplink and all tunnels.
fn fits(ports: &[PortInfo]) -> u16 {
    let tunnels = ports.iter().filter_map(|port| port.tunnel.as_ref()?.inner_mtu);
    let own = ports.iter().filter(|port| port.name == PORT).map(|port| port.spec.policy.mtu);
    tunnels.chain(own).fold(USUAL, u16::min)
}
