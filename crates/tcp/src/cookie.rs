//! SYN cookies: the SYN-ACK carries the state of a half-open connection, so none is stored (RFC
//! 4987, 3.6).
//!
//! The sequence number has 3 bits of MSS and 29 bits of a keyed hash over the flow, the peer's
//! number and the minute. If the peer uses timestamps, their low bits hold window scale, SACK and
//! ECN, as in Linux.

use crate::flow::{Flow, Purpose, Secret};
use crate::seq::Seq;
use crate::time::Nanos;

/// The values of the peer's MSS that 3 bits can express.
const SIZES: [u16; 8] = [216, 536, 1220, 1440, 1460, 4312, 8940, 9140];
/// A cookie stays valid for one to two periods.
pub(crate) const PERIOD: u64 = 60 * Nanos::SECOND;
/// Bits of a timestamp that hold options.
const OPTION_BITS: u32 = 6;
const NO_SCALE: u32 = 15;

/// The state that a cookie carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CookieState {
    pub mss: u16,
    pub shift: Option<u8>,
    pub sack: bool,
    pub ecn: bool,
}

fn mac(secret: &Secret, flow: &Flow, irs: Seq, period: u64) -> u32 {
    secret.mac(Purpose::Cookie, flow, period << 32 | u64::from(irs.0)) as u32 >> 3
}

/// Returns the sequence number of a SYN-ACK for a SYN with number `irs`.
pub(crate) fn make(secret: &Secret, flow: &Flow, irs: Seq, mss: u16, now: Nanos) -> Seq {
    let index = SIZES.partition_point(|size| *size <= mss).saturating_sub(1);
    Seq(mac(secret, flow, irs, now.0 / PERIOD) << 3 | index as u32)
}

/// Returns the MSS in a cookie, if the cookie is ours and recent enough.
pub(crate) fn check(
    secret: &Secret,
    flow: &Flow,
    irs: Seq,
    cookie: Seq,
    now: Nanos,
) -> Option<u16> {
    let period = now.0 / PERIOD;
    let good = [Some(period), period.checked_sub(1)]
        .into_iter()
        .flatten()
        .any(|period| mac(secret, flow, irs, period) == cookie.0 >> 3);
    good.then_some(SIZES[cookie.0 as usize & 7])
}

/// Returns the clock with the options in its low bits. The result is never ahead of the clock.
pub(crate) fn stamp(clock: u32, remembered: &CookieState) -> u32 {
    let shift = remembered.shift.map_or(NO_SCALE, u32::from);
    let bits = shift | u32::from(remembered.sack) << 4 | u32::from(remembered.ecn) << 5;
    let mask = (1 << OPTION_BITS) - 1;
    let value = clock & !mask | bits;
    if bits > clock & mask { value.wrapping_sub(1 << OPTION_BITS) } else { value }
}

/// Returns the options in an echoed timestamp.
pub(crate) fn unstamp(echo: u32, mss: u16) -> CookieState {
    let shift = echo & 15;
    CookieState {
        mss,
        shift: (shift != NO_SCALE).then_some(shift as u8),
        sack: echo & 1 << 4 != 0,
        ecn: echo & 1 << 5 != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr};

    const SECRET: Secret = Secret([1, 2]);

    fn flow(port: u16) -> Flow {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Flow::new((address, 80), (address, port)).unwrap()
    }

    proptest! {
        #[test]
        fn stamps_come_back(clock in any::<u32>(), shift in proptest::option::of(0u8..15), sack in any::<bool>(), ecn in any::<bool>()) {
            let remembered = CookieState { mss: 1460, shift, sack, ecn };
            let value = stamp(clock, &remembered);
            prop_assert!(clock.wrapping_sub(value) < 64);
            prop_assert_eq!(unstamp(value, 1460), remembered);
        }

        #[test]
        fn only_our_cookies_are_good(irs in any::<u32>(), guess in any::<u32>(), seconds in 0u64..1_000_000) {
            let now = Nanos(seconds * Nanos::SECOND);
            let cookie = make(&SECRET, &flow(1), Seq(irs), 1460, now);
            let later = |seconds| Nanos(now.0 + seconds * Nanos::SECOND);
            prop_assert_eq!(check(&SECRET, &flow(1), Seq(irs), cookie, later(60)), Some(1460));
            prop_assert_eq!(check(&SECRET, &flow(1), Seq(irs), cookie, later(121)), None);
            prop_assert_eq!(check(&SECRET, &flow(2), Seq(irs), cookie, now), None);
            prop_assert_eq!(check(&SECRET, &flow(1), Seq(irs) + 1, cookie, now), None);
            prop_assume!(guess >> 3 != cookie.0 >> 3);
            prop_assert_eq!(check(&SECRET, &flow(1), Seq(irs), Seq(guess), now), None);
        }
    }

    #[test]
    fn the_mss_is_rounded_down() {
        for (mss, expected) in [(100, 216), (536, 536), (1459, 1440), (1460, 1460), (65_000, 9140)]
        {
            let cookie = make(&SECRET, &flow(1), Seq(9), mss, Nanos(0));
            assert_eq!(check(&SECRET, &flow(1), Seq(9), cookie, Nanos(0)), Some(expected));
        }
    }
}
